// Modes `copy` and `paper` on the device: one pass over the rows that stand for themselves.

#include "backend/cuda/attention/copy/copy.h"

#include <utility>

#include "backend/cuda/attention/copy/kernels.h"
#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/elementwise/elements.h"

namespace sluice::impl::cuda::copy {
namespace {

class CudaRepsAttention final : public RepsAttention {
 public:
  CudaRepsAttention(std::shared_ptr<Context> context, const RepsSpec& spec)
      : context_(std::move(context)), spec_(spec) {
    SLUICE_CHECK(spec.n_heads % spec.n_kv_heads == 0);
    dense::check_heads(spec.head_dim, group());
  }

  void attend(const AttendRepsArgs& args) override;
  void reset() override { n_rows_ = 0; }
  CacheBytes bytes() const override { return {2 * n_rows_ * spec_.n_kv_heads * row_bytes(), 0}; }

 private:
  int64_t group() const { return spec_.n_heads / spec_.n_kv_heads; }
  int64_t row_bytes() const { return spec_.head_dim * element_bytes(spec_.dtype); }
  void reserve(int64_t n);
  void store(const AttendRepsArgs& args);
  std::vector<int32_t> positions_of(const AttendRepsArgs& args) const;
  bool can_count(const AttendRepsArgs& args, std::span<const int32_t> positions) const;
  void attend_by_counts(const AttendRepsArgs& args, std::span<const int32_t> positions);

  std::shared_ptr<Context> context_;
  RepsSpec spec_;
  int64_t n_rows_ = 0, capacity_ = 0;
  DeviceArray<std::byte> keys_, values_;  // (n_kv_heads, capacity, head_dim)
  DeviceArray<int32_t> counts_;           // (capacity) members of each of n_rows_ clusters
};

void CudaRepsAttention::reserve(int64_t n) {
  if (n <= capacity_) return;
  const int64_t capacity = round_up(n_rows_ > 0 ? n + n / 2 : n, 64);
  const int64_t last = std::exchange(capacity_, 0);  // until all are there
  const auto move = [&](DeviceArray<std::byte>& array) {
    DeviceArray<std::byte> larger(context_, spec_.n_kv_heads * capacity * row_bytes());
    if (n_rows_ > 0)
      check(cudaMemcpy2DAsync(larger.data(), static_cast<size_t>(capacity * row_bytes()),
                              array.data(), static_cast<size_t>(last * row_bytes()),
                              static_cast<size_t>(n_rows_ * row_bytes()),
                              static_cast<size_t>(spec_.n_kv_heads), cudaMemcpyDeviceToDevice,
                              context_->stream()),
            "copy of the cache");
    array = std::move(larger);
  };
  move(keys_);
  move(values_);
  DeviceArray<int32_t> counts(context_, capacity);
  if (n_rows_ > 0)
    check(cudaMemcpyAsync(counts.data(), counts_.data(),
                          static_cast<size_t>(n_rows_) * sizeof(int32_t), cudaMemcpyDeviceToDevice,
                          context_->stream()),
          "counts");
  counts_ = std::move(counts);
  capacity_ = capacity;
}

void CudaRepsAttention::store(const AttendRepsArgs& args) {
  const int64_t n = args.keys.rows();
  if (n == 0) return;
  const Shape shape{1, spec_.n_kv_heads, capacity_, spec_.head_dim};
  elementwise::store_kv(*context_,
                        {.keys = args.keys,
                         .values = args.values,
                         .n_tokens = n,
                         .first_position = n_rows_,
                         .cache = {Tensor(keys_.data(), spec_.dtype, shape, Device::kCuda),
                                   Tensor(values_.data(), spec_.dtype, shape, Device::kCuda)}});
}

// Where each query stands among the tokens of the pass.
std::vector<int32_t> CudaRepsAttention::positions_of(const AttendRepsArgs& args) const {
  const TokenSet& set = *args.set;
  const int64_t n_tokens = set.n_tokens() - args.first_token;
  std::vector<int32_t> positions(static_cast<size_t>(n_tokens));
  size_t n = 0;
  const TokenStatus* status = set.status.data() + args.first_token;
  for (int64_t i = 0; i < n_tokens; ++i) {
    positions[n] = static_cast<int32_t>(i);
    n += status[i] != TokenStatus::kRedundant ? 1 : 0;
  }
  positions.resize(n);
  return positions;
}

void CudaRepsAttention::attend(const AttendRepsArgs& args) {
  const TokenSet& set = *args.set;
  const int64_t n = args.queries.rows(), n_tokens = set.n_tokens() - args.first_token;
  SLUICE_CHECK(spec_.causal || n_rows_ == 0);
  SLUICE_CHECK(args.keys.rows() == n && args.values.rows() == n && args.out.rows() == n);
  for (const ConstTensor& x : {args.queries, args.keys, args.values, ConstTensor(args.out)})
    SLUICE_CHECK(x.dtype() == spec_.dtype);
  SLUICE_CHECK(n_rows_ + n == set.n_clusters && n_tokens >= 0);
  if (n_tokens == 0) return;
  const std::vector<int32_t> positions = positions_of(args);
  SLUICE_CHECK(static_cast<int64_t>(positions.size()) == n);
  reserve(n_rows_ + n);
  if (can_count(args, positions)) {
    attend_by_counts(args, positions);
  } else {
    store(args);
    attend_near(context_, {.spec = spec_,
                           .args = args,
                           .positions = positions,
                           .n_before = n_rows_,
                           .rows = {keys_.data(), values_.data(), nullptr, nullptr, capacity_},
                           .counts = counts_.data()});
  }
  n_rows_ += n;
}

bool CudaRepsAttention::can_count(const AttendRepsArgs& args,
                                  std::span<const int32_t> positions) const {
  const auto cluster = std::span(args.set->cluster).subspan(static_cast<size_t>(args.first_token));
  return spec_.multiplicity && spec_.causal && context_->compute_capability() == 90 &&
         !positions.empty() && static_cast<int64_t>(cluster.size()) > keys::kFewTokens &&
         dense::fits_tiles(spec_.dtype, spec_.head_dim, args.queries, args.out) &&
         bytes_suffice(cluster, positions, args.set->n_clusters);
}

void CudaRepsAttention::attend_by_counts(const AttendRepsArgs& args,
                                         std::span<const int32_t> positions) {
  const auto stride = [](const ConstTensor& x) {  // of one row any will do
    return x.rows() > 1 ? x.row_stride() : x.row_elements();
  };
  NewRows fresh{};
  if (n_rows_ == 0 && dense::fits_tiles(spec_.dtype, spec_.head_dim, args.keys, args.values))
    fresh = {args.keys.bytes(), args.values.bytes(), stride(args.keys), stride(args.values)};
  else
    store(args);
  attend_counted(
      context_,
      {.rows = {.queries = args.queries.bytes(),
                .keys = keys_.data(),
                .values = values_.data(),
                .out = args.out.bytes(),
                .query_stride = stride(args.queries),
                .out_stride = stride(args.out),
                .n_batch = 1,
                .n_heads = spec_.n_heads,
                .n_kv_heads = spec_.n_kv_heads,
                .capacity = capacity_,
                .head_dim = spec_.head_dim,
                .n_tokens = static_cast<int64_t>(positions.size()),
                .first_position = n_rows_,
                .window = 0,
                .causal = true,
                .scale = spec_.scale},
       .fresh = fresh,
       .cluster = std::span(args.set->cluster).subspan(static_cast<size_t>(args.first_token)),
       .positions = positions,
       .counts = counts_.data()});
}

}  // namespace

std::unique_ptr<RepsAttention> make_reps_attention(std::shared_ptr<Context> context,
                                                   const RepsSpec& spec) {
  return std::make_unique<CudaRepsAttention>(std::move(context), spec);
}

}  // namespace sluice::impl::cuda::copy
