// Modes `copy` and `paper` on the device: one pass over the rows that stand for themselves.

#include <algorithm>

#include "backend/cuda/accelerated.h"
#include "backend/cuda/attend_dense.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/reps_kernels.h"

namespace sluice::cuda {
namespace {

class CudaRepsAttention final : public RepsAttention {
 public:
  CudaRepsAttention(std::shared_ptr<Context> context, const RepsSpec& spec)
      : context_(std::move(context)), spec_(spec) {
    SLUICE_CHECK(spec.n_heads % spec.n_kv_heads == 0);
    check_heads(spec.head_dim, group());
  }

  void attend(const AttendRepsArgs& args) override;
  void reset() override { n_rows_ = 0; }
  CacheBytes bytes() const override { return {2 * n_rows_ * spec_.n_kv_heads * row_bytes(), 0}; }

 private:
  int64_t group() const { return spec_.n_heads / spec_.n_kv_heads; }
  int64_t row_bytes() const { return spec_.head_dim * element_bytes(spec_.dtype); }
  void reserve(int64_t n);
  void store(const AttendRepsArgs& args);

  std::shared_ptr<Context> context_;
  RepsSpec spec_;
  int64_t n_rows_ = 0, capacity_ = 0;
  DeviceArray<std::byte> keys_, values_;  // (n_kv_heads, capacity, head_dim)
  DeviceArray<int32_t> counts_;           // (capacity) members of each cluster
};

void CudaRepsAttention::reserve(int64_t n) {
  if (n_rows_ == 0 && counts_.data() != nullptr)
    check(cudaMemsetAsync(counts_.data(), 0, static_cast<size_t>(capacity_) * sizeof(int32_t),
                          context_->stream()),
          "counts");
  if (n <= capacity_) return;
  const int64_t capacity = round_up(n_rows_ > 0 ? n + n / 2 : n, 64);
  const auto move = [&](DeviceArray<std::byte>& array) {
    DeviceArray<std::byte> larger(context_, spec_.n_kv_heads * capacity * row_bytes());
    if (n_rows_ > 0)
      check(cudaMemcpy2DAsync(larger.data(), static_cast<size_t>(capacity * row_bytes()),
                              array.data(), static_cast<size_t>(capacity_ * row_bytes()),
                              static_cast<size_t>(n_rows_ * row_bytes()),
                              static_cast<size_t>(spec_.n_kv_heads), cudaMemcpyDeviceToDevice,
                              context_->stream()),
            "copy of the cache");
    array = std::move(larger);
  };
  move(keys_);
  move(values_);
  DeviceArray<int32_t> counts(context_, capacity);
  check(cudaMemsetAsync(counts.data(), 0, static_cast<size_t>(capacity) * sizeof(int32_t),
                        context_->stream()),
        "counts");
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
  reserve(n_rows_ + n);
  if (n == 0) return;
  const Shape shape{1, spec_.n_kv_heads, capacity_, spec_.head_dim};
  store_kv(*context_, {.keys = args.keys,
                       .values = args.values,
                       .n_tokens = n,
                       .first_position = n_rows_,
                       .cache = {Tensor(keys_.data(), spec_.dtype, shape, Device::kCuda),
                                 Tensor(values_.data(), spec_.dtype, shape, Device::kCuda)}});
}

void CudaRepsAttention::attend(const AttendRepsArgs& args) {
  const TokenSet& set = *args.set;
  const int64_t n = args.queries.rows(), n_tokens = set.n_tokens() - args.first_token;
  SLUICE_CHECK(spec_.causal || n_rows_ == 0);
  SLUICE_CHECK(args.keys.rows() == n && args.values.rows() == n && args.out.rows() == n);
  SLUICE_CHECK(n_rows_ + n == set.n_clusters && n_tokens >= 0);
  if (n_tokens == 0) return;
  store(args);

  // Queries in tiles, and which tile is the first to count each token.
  std::vector<int32_t> ends, tile_of(static_cast<size_t>(n_tokens));
  for (int64_t i = 0; i < n_tokens; ++i)
    if (set.status[static_cast<size_t>(args.first_token + i)] != TokenStatus::kRedundant)
      ends.push_back(static_cast<int32_t>(spec_.causal ? i + 1 : n_tokens));
  SLUICE_CHECK(static_cast<int64_t>(ends.size()) == n);
  const bool tiled = fits_tiles(spec_.dtype, spec_.head_dim, args.queries, args.out);
  const int64_t per_tile = tiled ? kRepsTileRows / group() : 1;
  std::vector<RepsTile> tiles;
  int64_t n_counted = 0;
  for (int64_t row = 0; row < n; row += per_tile) {
    const int64_t size = std::min(per_tile, n - row);
    const int64_t first_end = ends[static_cast<size_t>(row)];
    for (; n_counted < first_end; ++n_counted)
      tile_of[static_cast<size_t>(n_counted)] = static_cast<int32_t>(tiles.size());
    tiles.push_back({row, size, first_end, ends[static_cast<size_t>(row + size - 1)]});
  }
  for (; n_counted < n_tokens; ++n_counted)
    tile_of[static_cast<size_t>(n_counted)] = static_cast<int32_t>(tiles.size());

  const int64_t n_clusters = n_rows_ + n, n_tiles = static_cast<int64_t>(tiles.size());
  const DeviceArray<int32_t> cluster(
      context_, std::span(set.cluster).subspan(static_cast<size_t>(args.first_token)));
  const DeviceArray<int32_t> device_tile_of(context_, std::span<const int32_t>(tile_of));
  const DeviceArray<int32_t> counts(context_, (n_tiles + 1) * n_clusters);
  count_members(*context_, {.cluster = cluster.data(),
                            .n = n_tokens,
                            .n_clusters = n_clusters,
                            .tile_of = device_tile_of.data(),
                            .n_tiles = n_tiles,
                            .counts = counts.data(),
                            .before = counts_.data()});
  if (n > 0) {
    const DeviceArray<int32_t> device_ends(context_, std::span<const int32_t>(ends));
    const DeviceArray<RepsTile> device_tiles(context_, std::span<const RepsTile>(tiles));
    RepsView view{};
    view.queries = args.queries.bytes();
    view.keys = keys_.data();
    view.values = values_.data();
    view.out = args.out.bytes();
    view.query_stride = args.queries.row_stride();
    view.out_stride = args.out.row_stride();
    view.n_heads = spec_.n_heads;
    view.n_kv_heads = spec_.n_kv_heads;
    view.head_dim = spec_.head_dim;
    view.capacity = capacity_;
    view.scale = spec_.scale;
    view.causal = spec_.causal;
    view.multiplicity = spec_.multiplicity;
    view.first_row = n_rows_;
    view.n_rows = n;
    view.tiles = device_tiles.data();
    view.n_tiles = n_tiles;
    view.cluster = cluster.data();
    view.ends = device_ends.data();
    view.counts = counts.data();
    view.count_stride = n_clusters;
    const int64_t wanted = 2 * int64_t{context_->multiprocessors()} / (n_tiles * spec_.n_kv_heads);
    view.n_splits = std::clamp<int64_t>(wanted, 1, ceil_div(n_clusters, 256));
    if (tiled)
      attend_reps_tiles(context_, view);
    else
      attend_reps_plain(*context_, view, spec_.dtype == DType::kBF16);
  }
  n_rows_ += n;
}

}  // namespace

std::unique_ptr<RepsAttention> make_cuda_reps_attention(std::shared_ptr<Context> context,
                                                        const RepsSpec& spec) {
  return std::make_unique<CudaRepsAttention>(std::move(context), spec);
}

}  // namespace sluice::cuda
