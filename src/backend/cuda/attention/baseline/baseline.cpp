#include "backend/cuda/attention/baseline/baseline.h"

#include "backend/cuda/attention/baseline/kernels.h"
#include "backend/cuda/attention/dense/dense.h"
#include "core/shape.h"

namespace sluice::impl::cuda::baseline {
namespace {

class CudaBaselineAttention final : public BaselineAttention {
 public:
  CudaBaselineAttention(std::shared_ptr<Context> context, const BaselineSpec& spec)
      : context_(std::move(context)), spec_(spec), n_read_(context_, 1) {
    SLUICE_CHECK(spec.keep > 0 && spec.keep <= 1 && spec.context > 0 && spec.n_kv_heads > 0 &&
                 spec.n_heads % spec.n_kv_heads == 0);
    dense::check_heads(spec.head_dim, spec.n_heads / spec.n_kv_heads);
    const int64_t row = spec.n_kv_heads * spec.head_dim;
    const int64_t bytes = checked_mul(checked_mul(spec.capacity, row), element_bytes(spec.dtype));
    keys_ = {context_, bytes};
    values_ = {context_, bytes};
    if (spec.kind == BaselineKind::kQuest)
      smallest_ = {context_, n_pages() * row}, largest_ = {context_, n_pages() * row};
    if (spec.kind == BaselineKind::kPooled) means_ = {context_, n_blocks() * row};
    reset();
  }

  void attend(const AttendBaselineArgs& args) override;
  void reset() override {
    n_tokens_ = to_choose_ = 0;
    check(cudaMemsetAsync(n_read_.data(), 0, sizeof(uint64_t), context_->stream()),
          "clearing a count");
  }
  CacheBytes bytes() const override {
    return {.exact = 2 * n_tokens_ * spec_.n_kv_heads * spec_.head_dim * element_bytes(spec_.dtype),
            .clusters = 0};
  }
  int64_t keys_read() const override {
    uint64_t n = 0;
    context_->fetch(n_read_.data(), &n, sizeof(n));
    return static_cast<int64_t>(n) + to_choose_;
  }

 private:
  int64_t n_pages() const { return ceil_div(spec_.capacity, kBaselinePage); }
  int64_t n_blocks() const { return ceil_div(spec_.capacity, kBaselineBlock); }
  void store(const ConstTensor& rows, std::byte* to) const;
  void choose(const PassView& pass) const;

  std::shared_ptr<Context> context_;
  BaselineSpec spec_;
  int64_t n_tokens_ = 0;
  int64_t to_choose_ = 0;                   // keys that kQuest read in order to choose
  DeviceArray<std::byte> keys_, values_;    // (n_kv_heads, capacity, head_dim)
  DeviceArray<float> smallest_, largest_;   // kQuest: (n_kv_heads, n_pages, head_dim)
  DeviceArray<float> means_;                // kPooled: (n_kv_heads, n_blocks, head_dim)
  DeviceArray<unsigned long long> n_read_;  // (1)
};

// rows: (n, n_kv_heads, head_dim), to (n_kv_heads, capacity, head_dim) from n_tokens_ on.
void CudaBaselineAttention::store(const ConstTensor& rows, std::byte* to) const {
  const int64_t size = element_bytes(spec_.dtype), width = spec_.head_dim * size;
  for (int64_t head = 0; head < spec_.n_kv_heads; ++head)
    check(cudaMemcpy2DAsync(to + (head * spec_.capacity + n_tokens_) * width,
                            static_cast<size_t>(width), rows.bytes() + head * width,
                            static_cast<size_t>(rows.row_stride() * size),
                            static_cast<size_t>(width), static_cast<size_t>(rows.rows()),
                            cudaMemcpyDeviceToDevice, context_->stream()),
          "keeping keys and values");
}

void CudaBaselineAttention::choose(const PassView& pass) const {
  switch (spec_.kind) {
    case BaselineKind::kWindow:
      return choose_window(*context_, pass);
    case BaselineKind::kQuest: {
      const PageBounds bounds{smallest_.data(), largest_.data(), n_pages()};
      bound_pages(*context_, pass, bounds);
      return choose_quest(*context_, pass, bounds, baseline_pages(spec_.keep, spec_.context));
    }
    case BaselineKind::kPooled: {
      const BlockMeans means{means_.data(), n_blocks()};
      mean_blocks(*context_, pass, means);
      return choose_pooled(*context_, pass, means, spec_.keep);
    }
    case BaselineKind::kOracle:
      return choose_oracle(*context_, pass, spec_.keep);
  }
  SLUICE_CHECK(!"unknown baseline");
}

void CudaBaselineAttention::attend(const AttendBaselineArgs& args) {
  if (context_->recording()) throw CannotRecord();
  const int64_t n = args.queries.rows();
  if (n == 0) return;
  SLUICE_CHECK(n_tokens_ + n <= spec_.capacity);
  for (const ConstTensor& x : {args.queries, args.keys, args.values, ConstTensor(args.out)})
    SLUICE_CHECK(x.dtype() == spec_.dtype && x.rows() == n);
  store(args.keys, keys_.data());
  store(args.values, values_.data());
  const int64_t n_words = ceil_div(ceil_div(n_tokens_ + n, kBaselinePage), 32);
  const DeviceArray<uint32_t> reads(context_, n * spec_.n_heads * n_words);
  const PassView pass{.queries = args.queries.bytes(),
                      .out = args.out.bytes(),
                      .query_stride = args.queries.row_stride(),
                      .out_stride = args.out.row_stride(),
                      .keys = keys_.data(),
                      .values = values_.data(),
                      .bf16 = spec_.dtype == DType::kBF16,
                      .n_heads = spec_.n_heads,
                      .n_kv_heads = spec_.n_kv_heads,
                      .head_dim = spec_.head_dim,
                      .capacity = spec_.capacity,
                      .first = n_tokens_,
                      .n_tokens = n,
                      .scale = spec_.scale,
                      .window = spec_.kind == BaselineKind::kWindow
                                    ? baseline_window(spec_.keep, spec_.context)
                                    : kNoWindow,
                      .n_words = n_words,
                      .reads = reads.data(),
                      .n_read = n_read_.data()};
  choose(pass);
  baseline::attend(*context_, pass);
  if (spec_.kind == BaselineKind::kQuest)
    for (int64_t t = n_tokens_; t < n_tokens_ + n; ++t)
      to_choose_ += (t / kBaselinePage + 1) * spec_.n_heads;
  n_tokens_ += n;
}

}  // namespace

std::unique_ptr<BaselineAttention> make_baseline_attention(std::shared_ptr<Context> context,
                                                           const BaselineSpec& spec) {
  return std::make_unique<CudaBaselineAttention>(std::move(context), spec);
}

}  // namespace sluice::impl::cuda::baseline
