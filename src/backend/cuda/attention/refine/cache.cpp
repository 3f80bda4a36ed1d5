#include "backend/cuda/attention/refine/cache.h"

#include <algorithm>

#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/attention/refine/kernels.h"
#include "core/shape.h"

namespace sluice::impl::cuda::refine {
namespace {

constexpr int64_t kTiles[] = {1, 16, 32, 64, 128};
// Tokens that there is room for behind those that are there, where memory grows; a quarter of them
// where that is more.
constexpr int64_t kSpareTokens = 1024;
constexpr int64_t kSpreadBytes = sizeof(uint4), kRhoBytes = sizeof(float);  // of a page

void check_spec(const RefineSpec& spec) {
  check_refine(spec);
  const auto refuse = [](const std::string& what) {
    throw Error("refined attention on this device takes " + what, "use --device cpu");
  };
  if (spec.page != kPage)
    refuse("pages of " + std::to_string(kPage) + " tokens, not " + std::to_string(spec.page));
  if (spec.segment > kMostSegment)
    refuse("segments of at most " + std::to_string(kMostSegment) + " tokens, not " +
           std::to_string(spec.segment));
  if (spec.members != CacheKind::kExact) refuse("members in the compute dtype, not int8");
  if (std::find(std::begin(kTiles), std::end(kTiles), spec.tile) == std::end(kTiles))
    refuse("tiles of 1, 16, 32, 64 or 128 queries, not " + std::to_string(spec.tile));
  dense::check_heads(spec.head_dim, spec.n_heads / spec.n_kv_heads);
}

class CudaRefineAttention final : public RefineAttention {
 public:
  CudaRefineAttention(std::shared_ptr<Context> context, const RefineSpec& spec);

  void attend(const AttendRefineArgs& args) override;
  void attend_exact(const AttendRefineArgs& args) override;
  void set_delta_factor(double factor) override;
  bool can_record_next() const override {
    return n_tokens_ > 0 && spec_.border(n_tokens_) <= settled_ &&
           spec_.early_border(n_tokens_) <= early_;
  }
  void expect_token() override {
    SLUICE_CHECK(n_tokens_ < capacity_ && can_record_next());
    ++n_tokens_;
  }
  void reset() override;
  CacheBytes bytes() const override;
  std::vector<int64_t> opened() const override { return opened_later()(); }
  std::function<std::vector<int64_t>()> opened_later() const override;

 private:
  void check_args(const AttendRefineArgs& args) const;
  // Whether every query of a pass of n tokens decides for itself.
  bool decide_alone(int64_t n) const { return spec_.causal && (n == 1 || spec_.tile == 1); }
  RefineView view_of(const AttendRefineArgs& args) const;
  void settle_before(const AttendRefineArgs& args);
  void attend_piece(const AttendRefineArgs& args);
  void attend_many(const AttendRefineArgs& args, RefineView view) const;
  DeviceArray<std::byte> zeroed(int64_t bytes) const;
  std::shared_ptr<DeviceArray<std::byte>> zero_counts(int64_t capacity) const;
  DeviceArray<std::byte> grown(const DeviceArray<std::byte>& rows, int64_t bytes_before,
                               int64_t bytes) const;
  void reserve(int64_t n_tokens);
  int64_t row_bytes() const { return spec_.head_dim * element_bytes(spec_.dtype); }

  std::shared_ptr<Context> context_;
  RefineSpec spec_;
  int64_t capacity_ = 0, n_pages_ = 0;  // tokens that there is memory for, and their pages
  int64_t n_tokens_ = 0;
  int64_t settled_ = 0;                   // tokens of settled segments
  int64_t early_ = 0;                     // tokens with what is settled early, behind them
  DeviceArray<std::byte> keys_, values_;  // (n_kv_heads, capacity, head_dim)
  DeviceArray<std::byte> mean_keys_, mean_values_;  // (n_kv_heads, n_pages, head_dim)
  DeviceArray<std::byte> spreads_, rhos_;  // (n_kv_heads, n_pages) CacheView::spreads and rhos
  DeviceArray<uint16_t> dims_;  // (n_kv_heads, head_dim + kSpreadGroups + 1) CacheView::dims
  // (capacity / segment, n_heads) u64. Counts may be looked at when the rest is gone.
  std::shared_ptr<DeviceArray<std::byte>> opened_;
  DeviceArray<uint16_t> places_;  // (n_kv_heads, segment) CacheView::places
  DeviceArray<HeadKind> kinds_;   // (2, n_kv_heads): in force, and all dense
  DeviceArray<float> deltas_;     // (2, n_kv_heads): where a query decides, where a tile does
};

// Rows that nobody has written may be multiplied by a weight of zero: they must be finite.
CudaRefineAttention::CudaRefineAttention(std::shared_ptr<Context> context, const RefineSpec& spec)
    : context_(std::move(context)), spec_(spec) {
  check_spec(spec);
  if (!spec.grows) reserve(spec.capacity);
  dims_ = {context_, spec.n_kv_heads * (spec.head_dim + kSpreadGroups + 1)};
  places_ = {context_, spec.n_kv_heads * spec.segment};
  kinds_ = {context_, 2 * spec.n_kv_heads};
  deltas_ = {context_, 2 * spec.n_kv_heads};
  set_delta_factor(1);
}

// In place: recordings read them there.
void CudaRefineAttention::set_delta_factor(double factor) {
  std::vector<HeadKind> kinds;
  std::vector<float> deltas, of_tiles;
  for (const RefineHead& head : spec_.heads) {
    const RefineHead plan = head.tightened(factor);
    kinds.push_back(plan.kind);
    deltas.push_back(static_cast<float>(plan.delta));
    of_tiles.push_back(static_cast<float>(plan.delta * (spec_.tile > 1 ? spec_.tile_factor : 1)));
  }
  kinds.resize(2 * kinds.size(), HeadKind::kDense);
  deltas.insert(deltas.end(), of_tiles.begin(), of_tiles.end());
  context_->send(kinds.data(), kinds_.data(), std::ssize(kinds) * int64_t{sizeof(HeadKind)});
  context_->send(deltas.data(), deltas_.data(), std::ssize(deltas) * int64_t{sizeof(float)});
}

DeviceArray<std::byte> CudaRefineAttention::zeroed(int64_t bytes) const {
  DeviceArray<std::byte> array(context_, bytes);
  check(cudaMemsetAsync(array.data(), 0, static_cast<size_t>(bytes), context_->stream()),
        "clearing the cache");
  return array;
}

std::shared_ptr<DeviceArray<std::byte>> CudaRefineAttention::zero_counts(int64_t capacity) const {
  const int64_t n = capacity / spec_.segment * spec_.n_heads;
  return std::make_shared<DeviceArray<std::byte>>(zeroed(n * int64_t{sizeof(uint64_t)}));
}

// bytes: of a kv head.
DeviceArray<std::byte> CudaRefineAttention::grown(const DeviceArray<std::byte>& rows,
                                                  int64_t bytes_before, int64_t bytes) const {
  DeviceArray<std::byte> larger = zeroed(checked_mul(bytes, spec_.n_kv_heads));
  for (int64_t head = 0; bytes_before > 0 && head < spec_.n_kv_heads; ++head)
    check(cudaMemcpyAsync(larger.data() + head * bytes, rows.data() + head * bytes_before,
                          static_cast<size_t>(bytes_before), cudaMemcpyDeviceToDevice,
                          context_->stream()),
          "a larger cache");
  return larger;
}

// Room for n tokens. Where there is no memory for them all stays as it was.
void CudaRefineAttention::reserve(int64_t n_tokens) {
  if (n_tokens <= capacity_) return;
  SLUICE_CHECK(n_tokens <= round_up(spec_.capacity, spec_.segment));
  const int64_t spare = std::max(kSpareTokens, n_tokens / 4);
  const int64_t room = std::max(n_tokens, std::min(n_tokens + spare, spec_.capacity));
  const int64_t capacity = round_up(room, spec_.segment), n_pages = capacity / kPage;
  const int64_t row = row_bytes();
  const int64_t bytes = checked_mul(capacity, row);
  DeviceArray<std::byte> keys = grown(keys_, capacity_ * row, bytes),
                         values = grown(values_, capacity_ * row, bytes),
                         mean_keys = grown(mean_keys_, n_pages_ * row, n_pages * row),
                         mean_values = grown(mean_values_, n_pages_ * row, n_pages * row),
                         spreads = grown(spreads_, n_pages_ * kSpreadBytes, n_pages * kSpreadBytes),
                         rhos = grown(rhos_, n_pages_ * kRhoBytes, n_pages * kRhoBytes);
  const auto opened = zero_counts(capacity);
  if (opened_ != nullptr) {
    context_->count_move();
    check(cudaMemcpyAsync(opened->data(), opened_->data(), static_cast<size_t>(opened_->size()),
                          cudaMemcpyDeviceToDevice, context_->stream()),
          "more counts");
  }
  keys_ = std::move(keys);
  values_ = std::move(values);
  mean_keys_ = std::move(mean_keys);
  mean_values_ = std::move(mean_values);
  spreads_ = std::move(spreads);
  rhos_ = std::move(rhos);
  opened_ = opened;
  capacity_ = capacity;
  n_pages_ = n_pages;
}

void CudaRefineAttention::reset() {
  n_tokens_ = settled_ = early_ = 0;
  if (opened_ == nullptr) return;
  if (opened_.use_count() > 1) {  // somebody may still look at the counts
    context_->count_move();
    opened_ = zero_counts(capacity_);
    return;
  }
  check(
      cudaMemsetAsync(opened_->data(), 0, static_cast<size_t>(opened_->size()), context_->stream()),
      "clearing counts");
}

void CudaRefineAttention::check_args(const AttendRefineArgs& args) const {
  const int64_t n = args.queries.rows();
  SLUICE_CHECK(spec_.causal || n_tokens_ == 0);
  SLUICE_CHECK(n_tokens_ + n <= capacity_);
  SLUICE_CHECK(args.keys.rows() == n && args.values.rows() == n && args.out.rows() == n);
  for (const ConstTensor& x : {args.queries, args.keys, args.values, ConstTensor(args.out)})
    SLUICE_CHECK(x.dtype() == spec_.dtype);
  for (const ConstTensor& x : {args.queries, ConstTensor(args.out)})
    SLUICE_CHECK(x.row_elements() == spec_.n_heads * spec_.head_dim);
  for (const ConstTensor& x : {args.keys, args.values})
    SLUICE_CHECK(x.row_elements() == spec_.n_kv_heads * spec_.head_dim);
}

RefineView CudaRefineAttention::view_of(const AttendRefineArgs& args) const {
  return {.queries = args.queries.bytes(),
          .out = args.out.bytes(),
          .query_stride = args.queries.row_stride(),
          .out_stride = args.out.row_stride(),
          .n_heads = spec_.n_heads,
          .n_kv_heads = spec_.n_kv_heads,
          .head_dim = spec_.head_dim,
          .scale = spec_.scale,
          .causal = spec_.causal,
          .first_position = n_tokens_,
          .n_tokens = args.queries.rows(),
          .window = spec_.window,
          .segment = spec_.segment,
          .sinks = spec_.sinks,
          .tile = spec_.tile,
          .border_step =
              spec_.early > 0 && decide_alone(args.queries.rows()) ? spec_.early : spec_.segment,
          .kinds = kinds_.data(),
          .deltas = deltas_.data() + (args.queries.rows() > 1 ? spec_.n_kv_heads : 0),
          .cache = {.keys = keys_.data(),
                    .values = values_.data(),
                    .mean_keys = mean_keys_.data(),
                    .mean_values = mean_values_.data(),
                    .spreads = reinterpret_cast<uint4*>(spreads_.data()),
                    .rhos = reinterpret_cast<float*>(rhos_.data()),
                    .dims = dims_.data(),
                    .capacity = capacity_,
                    .n_pages = n_pages_,
                    .early_begin = settled_,
                    .early_end = early_,
                    .places = places_.data()},
          .recent = {},
          .opened = reinterpret_cast<unsigned long long*>(opened_->data())};
}

void CudaRefineAttention::attend_many(const AttendRefineArgs& args, RefineView view) const {
  const int64_t first = view.first_position;
  view.recent.first = spec_.causal ? view.border(first) : 0;
  view.recent.n = first + view.n_tokens - view.recent.first;
  const PassRows pass{args.keys.bytes(), args.values.bytes(), args.keys.row_stride(),
                      args.values.row_stride()};
  const int64_t d = spec_.head_dim;
  DeviceArray<std::byte> gathered;
  if (view.recent.first == first && view.n_tokens > 1 &&
      dense::fits_tiles(spec_.dtype, d, args.keys, args.values)) {
    view.recent = {pass.keys,         pass.values,  d, pass.key_stride, pass.value_stride,
                   view.recent.first, view.recent.n};
    store_recent(*context_, view, pass, spec_.dtype);
  } else {
    // From the pool and back to it: layers that follow each other take the same memory.
    const int64_t bytes = round_up(view.recent.n * spec_.n_kv_heads * row_bytes(), 256);
    gathered = {context_, 2 * bytes};
    std::byte *keys = gathered.data(), *values = keys + bytes;
    gather_recent(*context_, view, pass, keys, values, spec_.dtype);
    view.recent = {keys, values, view.recent.n * d, d, d, view.recent.first, view.recent.n};
  }
  settle(context_, view, spec_.dtype, view.recent.first, view.last_border());
  if (!dense::fits_tiles(spec_.dtype, spec_.head_dim, args.queries, args.out))
    return attend_plain(*context_, view, spec_.dtype);
  if (context_->compute_capability() == 90) return attend_hopper(context_, view);
  attend_tiles(context_, view);
}

// Settles what the first query of a pass sees as clusters, of tokens that lie in the cache. A step
// that does so is not recorded.
void CudaRefineAttention::settle_before(const AttendRefineArgs& args) {
  if (!spec_.causal) return;
  const auto settle = [&](int64_t& done, int64_t begin, int64_t end, int64_t n_tokens) {
    if (begin >= end) return;
    if (context_->recording()) throw CannotRecord();
    settle_in_place(context_, view_of(args), spec_.dtype, begin, end, n_tokens);
    done = end;
  };
  settle(settled_, settled_, spec_.border(n_tokens_), spec_.segment);
  early_ = std::max(early_, settled_);
  if (spec_.early > 0 && decide_alone(args.queries.rows()))
    settle(early_, early_, spec_.early_border(n_tokens_), spec_.early);
}

// Queries that share a border where they decide for themselves.
void CudaRefineAttention::attend_piece(const AttendRefineArgs& args) {
  settle_before(args);
  const RefineView view = view_of(args);
  const bool recording = context_->recording();
  if (view.n_tokens == 1 && spec_.causal) {
    attend_one(context_, view, spec_.dtype, args.keys.bytes(), args.values.bytes());
    if (recording) return;  // no token has come yet
  } else {
    if (recording) throw CannotRecord();
    attend_many(args, view);
  }
  n_tokens_ += view.n_tokens;
  if (!spec_.causal) return;
  settled_ = spec_.border(n_tokens_ - 1);
  early_ = std::max(early_, settled_);
}

void CudaRefineAttention::attend(const AttendRefineArgs& args) {
  const int64_t n = args.queries.rows();
  if (n == 0) return;
  reserve(n_tokens_ + n);
  check_args(args);
  if (spec_.early == 0 || n == 1 || !decide_alone(n)) return attend_piece(args);
  for (int64_t row = 0; row < n;) {
    const int64_t next = spec_.early_border_end(n_tokens_);
    const int64_t n_rows = std::min(n - row, next - n_tokens_);
    attend_piece({.queries = args.queries.rows_from(row, n_rows),
                  .keys = args.keys.rows_from(row, n_rows),
                  .values = args.values.rows_from(row, n_rows),
                  .out = args.out.rows_from(row, n_rows)});
    row += n_rows;
  }
}

// As of dense heads. The token's key and value are left where the next pass puts its own.
void CudaRefineAttention::attend_exact(const AttendRefineArgs& args) {
  SLUICE_CHECK(spec_.causal && args.queries.rows() == 1);
  reserve(n_tokens_ + 1);
  check_args(args);
  RefineView view = view_of(args);
  view.kinds = kinds_.data() + spec_.n_kv_heads;
  view.opened = nullptr;
  attend_one(context_, view, spec_.dtype, args.keys.bytes(), args.values.bytes());
}

CacheBytes CudaRefineAttention::bytes() const {
  if (n_tokens_ == 0) return {};
  const int64_t settled = spec_.causal ? early_ : n_tokens_ / spec_.segment * spec_.segment;
  const int64_t n_pages = settled > 0 ? (settled - spec_.sinks) / kPage : 0;
  return {.exact = 2 * spec_.n_kv_heads * n_tokens_ * row_bytes(),
          .clusters = spec_.n_kv_heads * n_pages * (2 * row_bytes() + kSpreadBytes + kRhoBytes)};
}

std::function<std::vector<int64_t>()> CudaRefineAttention::opened_later() const {
  const auto n = static_cast<size_t>(ceil_div(n_tokens_, spec_.segment) * spec_.n_heads);
  return [context = context_, counts = opened_, n] {
    std::vector<int64_t> found(n);
    const CurrentDevice current(context->device());
    if (n > 0)
      context->fetch(counts->data(), found.data(), static_cast<int64_t>(n * sizeof(int64_t)));
    return found;
  };
}

}  // namespace

std::unique_ptr<RefineAttention> make_refine_attention(std::shared_ptr<Context> context,
                                                       const RefineSpec& spec) {
  return std::make_unique<CudaRefineAttention>(std::move(context), spec);
}

}  // namespace sluice::impl::cuda::refine
