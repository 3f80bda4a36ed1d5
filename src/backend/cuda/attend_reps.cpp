// Modes `copy` and `paper` on the device: one pass over the rows that stand for themselves.

#include <algorithm>
#include <numeric>

#include "backend/cuda/accelerated.h"
#include "backend/cuda/attend_dense.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/reps_kernels.h"
#include "backend/cuda/upload.h"

namespace sluice::cuda {
namespace {

// Biases of tiles have room for so many at a time, 128 MB of them, or for one tile's.
constexpr int64_t kMostBiases = int64_t{1} << 25;

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

  struct Queries {
    std::vector<int32_t> positions, n_far;
    std::vector<int32_t> rows;  // of near keys, where tokens do not count
    std::vector<QueryTile> tiles;
    std::vector<Border> borders;  // per tile; offset: of its biases, as slices have them
    int64_t n_near = 0;           // keys that might be
    int64_t per_slice = 0;        // tiles whose biases are there at a time
  };
  std::vector<int32_t> positions_of(const AttendRepsArgs& args) const;
  bool can_count(const AttendRepsArgs& args, std::span<const int32_t> positions) const;
  void attend_by_counts(const AttendRepsArgs& args, std::span<const int32_t> positions);
  void attend_by_near_keys(const AttendRepsArgs& args, std::vector<int32_t> positions);
  Queries queries_of(const AttendRepsArgs& args, std::vector<int32_t> positions) const;
  KeysView view_of(const AttendRepsArgs& args, const Queries& queries) const;

  std::shared_ptr<Context> context_;
  RepsSpec spec_;
  int64_t n_rows_ = 0, capacity_ = 0;
  DeviceArray<std::byte> keys_, values_;  // (n_kv_heads, capacity, head_dim)
  DeviceArray<int32_t> counts_;           // (capacity) members of each of n_rows_ clusters
};

void CudaRepsAttention::reserve(int64_t n) {
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
  store_kv(*context_, {.keys = args.keys,
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

// Queries in tiles, and how many clusters are far; where tokens do not count, a query's position is
// that among the rows.
CudaRepsAttention::Queries CudaRepsAttention::queries_of(const AttendRepsArgs& args,
                                                         std::vector<int32_t> positions) const {
  const int64_t n_tokens = args.set->n_tokens() - args.first_token;
  const int64_t n_clusters = args.set->n_clusters;
  Queries queries;
  queries.positions = std::move(positions);
  const auto n = static_cast<int64_t>(queries.positions.size());
  if (!spec_.multiplicity)
    std::iota(queries.positions.begin(), queries.positions.end(), static_cast<int32_t>(n_rows_));
  queries.n_near = spec_.multiplicity ? n_tokens : n_clusters;
  queries.per_slice = std::max<int64_t>(kMostBiases / std::max<int64_t>(n_clusters, 1), 1);
  const int64_t per_tile = kKeysTileRows / group();
  for (int64_t row = 0; row < n; row += per_tile) {
    const int64_t first = queries.positions[static_cast<size_t>(row)];
    const int64_t border = spec_.causal ? first + 1 : queries.n_near;
    const auto tile = static_cast<int64_t>(queries.tiles.size());
    queries.tiles.push_back(
        {.row = row, .n = std::min(per_tile, n - row), .border = border, .list = tile});
    queries.borders.push_back(
        {.position = border,
         .offset = spec_.multiplicity ? tile % queries.per_slice * n_clusters : 0});
    queries.n_far.push_back(static_cast<int32_t>(spec_.causal ? n_rows_ + row + 1 : n_clusters));
  }
  if (!spec_.multiplicity) {
    queries.rows.resize(static_cast<size_t>(n_clusters));
    std::iota(queries.rows.begin(), queries.rows.end(), 0);
  }
  return queries;
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
  std::vector<int32_t> positions = positions_of(args);
  SLUICE_CHECK(static_cast<int64_t>(positions.size()) == n);
  reserve(n_rows_ + n);
  if (can_count(args, positions)) {
    attend_by_counts(args, positions);
  } else {
    store(args);
    attend_by_near_keys(args, std::move(positions));
  }
  n_rows_ += n;
}

bool CudaRepsAttention::can_count(const AttendRepsArgs& args,
                                  std::span<const int32_t> positions) const {
  const auto cluster = std::span(args.set->cluster).subspan(static_cast<size_t>(args.first_token));
  return spec_.multiplicity && spec_.causal && context_->compute_capability() == 90 &&
         !positions.empty() && static_cast<int64_t>(cluster.size()) > kFewTokens &&
         fits_tiles(spec_.dtype, spec_.head_dim, args.queries, args.out) &&
         bytes_suffice(cluster, positions, args.set->n_clusters);
}

void CudaRepsAttention::attend_by_counts(const AttendRepsArgs& args,
                                         std::span<const int32_t> positions) {
  const auto stride = [](const ConstTensor& x) {  // of one row any will do
    return x.rows() > 1 ? x.row_stride() : x.row_elements();
  };
  NewRows fresh{};
  if (n_rows_ == 0 && fits_tiles(spec_.dtype, spec_.head_dim, args.keys, args.values))
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

void CudaRepsAttention::attend_by_near_keys(const AttendRepsArgs& args,
                                            std::vector<int32_t> positions) {
  const TokenSet& set = *args.set;
  const int64_t n_tokens = set.n_tokens() - args.first_token;
  const Queries queries = queries_of(args, std::move(positions));
  const int64_t n_clusters = set.n_clusters;
  const auto n_tiles = static_cast<int64_t>(queries.tiles.size());
  Upload upload;
  std::span<const int32_t> clusters;  // where tokens count
  if (spec_.multiplicity)
    clusters = std::span(set.cluster).subspan(static_cast<size_t>(args.first_token));
  const int64_t cluster_at = upload.add(clusters);
  const int64_t positions_at = upload.add(std::span<const int32_t>(queries.positions));
  const int64_t tiles_at = upload.add(std::span<const QueryTile>(queries.tiles));
  const int64_t borders_at = upload.add(std::span<const Border>(queries.borders));
  const int64_t n_far_at = upload.add(std::span<const int32_t>(queries.n_far));
  const int64_t rows_at = upload.add(std::span<const int32_t>(queries.rows));
  const DeviceArray<std::byte> sent = upload.send(context_);
  const auto* cluster = array_at<int32_t>(sent, cluster_at);
  const auto* borders = array_at<Border>(sent, borders_at);
  const int64_t per_slice = std::max<int64_t>(std::min(queries.per_slice, n_tiles), 1);
  const DeviceArray<float> bias(context_, (spec_.multiplicity ? per_slice : 1) * n_clusters);
  if (!spec_.multiplicity)
    check(cudaMemsetAsync(bias.data(), 0, static_cast<size_t>(n_clusters) * sizeof(float),
                          context_->stream()),
          "no counts");
  // The tokens from `counted` up to `end`, and biases of the tiles whose borders lie there.
  int64_t counted = 0;
  const auto count_up_to = [&](int64_t end, int64_t first_tile, int64_t n_slice) {
    if (!spec_.multiplicity) return;
    count_members(*context_, {.cluster = cluster + counted,
                              .n = end - counted,
                              .n_clusters = n_clusters,
                              .n_known = counted > 0 ? n_clusters : n_rows_,
                              .width = n_clusters,
                              .first = counted,
                              .borders = borders + first_tile,
                              .n_tiles = n_slice,
                              .scale = spec_.scale,
                              .bias = bias.data(),
                              .before = counts_.data()});
    counted = end;
  };
  KeysView view = view_of(args, queries);
  view.query_positions = array_at<int32_t>(sent, positions_at);
  view.near_rows = spec_.multiplicity ? cluster : array_at<int32_t>(sent, rows_at);
  view.bias = bias.data();
  view.borders = borders;
  view.n_far = array_at<int32_t>(sent, n_far_at);
  view.n_borders = n_tiles;
  const bool aligned = fits_tiles(spec_.dtype, spec_.head_dim, args.queries, args.out);
  for (int64_t tile = 0; tile < n_tiles; tile += per_slice) {
    const int64_t n_slice = std::min(per_slice, n_tiles - tile);
    const bool last = tile + n_slice == n_tiles;
    count_up_to(last ? n_tokens : queries.borders[static_cast<size_t>(tile + n_slice - 1)].position,
                tile, n_slice);
    view.tiles = array_at<QueryTile>(sent, tiles_at) + tile;
    view.only = queries.tiles[static_cast<size_t>(tile)];
    view.n_tiles = n_slice;
    attend_keys(context_, spec_.dtype, aligned, view);
  }
  if (counted < n_tokens) count_up_to(n_tokens, 0, 0);
}

// What the slices of a pass have in common.
KeysView CudaRepsAttention::view_of(const AttendRepsArgs& args, const Queries& queries) const {
  const int64_t n_tokens = args.set->n_tokens() - args.first_token;
  KeysView view = view_of_queries(spec_, args);
  view.n_tokens = queries.n_near;
  view.before = {keys_.data(), values_.data(), nullptr, nullptr, capacity_};
  view.n_few = n_tokens <= kFewTokens ? n_tokens : 0;
  view.most_keys = view.n_few > 0 ? n_rows_ + n_tokens : 0;
  return view;
}

}  // namespace

std::unique_ptr<RepsAttention> make_cuda_reps_attention(std::shared_ptr<Context> context,
                                                        const RepsSpec& spec) {
  return std::make_unique<CudaRepsAttention>(std::move(context), spec);
}

}  // namespace sluice::cuda
