// Modes `copy` and `paper` by near keys: one pass over the rows. attention/copy/kernels.h says how.

#include <algorithm>
#include <numeric>

#include "backend/cuda/attention/copy/kernels.h"
#include "backend/cuda/runtime/upload.h"

namespace sluice::impl::cuda::copy {
namespace {

// Biases of tiles have room for so many at a time, 128 MB of them, or for one tile's.
constexpr int64_t kMostBiases = int64_t{1} << 25;

struct Queries {
  std::vector<int32_t> positions, n_far;
  std::vector<int32_t> rows;  // of near keys, where tokens do not count
  std::vector<keys::QueryTile> tiles;
  std::vector<keys::Border> borders;  // per tile; offset: of its biases, as slices have them
  int64_t n_near = 0;                 // keys that might be
  int64_t per_slice = 0;              // tiles whose biases are there at a time
};

// Queries in tiles, and how many clusters are far; where tokens do not count, a query's position is
// that among the rows.
Queries queries_of(const NearPass& pass) {
  const int64_t n_tokens = pass.args.set->n_tokens() - pass.args.first_token;
  const int64_t n_clusters = pass.args.set->n_clusters;
  Queries queries;
  queries.positions.assign(pass.positions.begin(), pass.positions.end());
  const auto n = static_cast<int64_t>(queries.positions.size());
  if (!pass.spec.multiplicity)
    std::iota(queries.positions.begin(), queries.positions.end(),
              static_cast<int32_t>(pass.n_before));
  queries.n_near = pass.spec.multiplicity ? n_tokens : n_clusters;
  queries.per_slice = std::max<int64_t>(kMostBiases / std::max<int64_t>(n_clusters, 1), 1);
  const int64_t per_tile = keys::kKeysTileRows / (pass.spec.n_heads / pass.spec.n_kv_heads);
  for (int64_t row = 0; row < n; row += per_tile) {
    const int64_t first = queries.positions[static_cast<size_t>(row)];
    const int64_t border = pass.spec.causal ? first + 1 : queries.n_near;
    const auto tile = static_cast<int64_t>(queries.tiles.size());
    queries.tiles.push_back(
        {.row = row, .n = std::min(per_tile, n - row), .border = border, .list = tile});
    queries.borders.push_back(
        {.position = border,
         .offset = pass.spec.multiplicity ? tile % queries.per_slice * n_clusters : 0});
    queries.n_far.push_back(
        static_cast<int32_t>(pass.spec.causal ? pass.n_before + row + 1 : n_clusters));
  }
  if (!pass.spec.multiplicity) {
    queries.rows.resize(static_cast<size_t>(n_clusters));
    std::iota(queries.rows.begin(), queries.rows.end(), 0);
  }
  return queries;
}

// What the slices of a pass have in common.
keys::KeysView view_of(const NearPass& pass, const Queries& queries) {
  const int64_t n_tokens = pass.args.set->n_tokens() - pass.args.first_token;
  keys::KeysView view = keys::view_of_queries(pass.spec, pass.args);
  view.queries.n_tokens = queries.n_near;
  view.rows.clusters = pass.rows;
  view.split.n_few = n_tokens <= keys::kFewTokens ? n_tokens : 0;
  view.split.most_keys = view.split.n_few > 0 ? pass.n_before + n_tokens : 0;
  return view;
}

}  // namespace

void attend_near(const std::shared_ptr<Context>& context, const NearPass& pass) {
  const TokenSet& set = *pass.args.set;
  const int64_t n_tokens = set.n_tokens() - pass.args.first_token;
  const Queries queries = queries_of(pass);
  const int64_t n_clusters = set.n_clusters;
  const auto n_tiles = static_cast<int64_t>(queries.tiles.size());
  Upload upload;
  std::span<const int32_t> clusters;  // where tokens count
  if (pass.spec.multiplicity)
    clusters = std::span(set.cluster).subspan(static_cast<size_t>(pass.args.first_token));
  const int64_t cluster_at = upload.add(clusters);
  const int64_t positions_at = upload.add(std::span<const int32_t>(queries.positions));
  const int64_t tiles_at = upload.add(std::span<const keys::QueryTile>(queries.tiles));
  const int64_t borders_at = upload.add(std::span<const keys::Border>(queries.borders));
  const int64_t n_far_at = upload.add(std::span<const int32_t>(queries.n_far));
  const int64_t rows_at = upload.add(std::span<const int32_t>(queries.rows));
  const DeviceArray<std::byte> sent = upload.send(context);
  const auto* cluster = array_at<int32_t>(sent, cluster_at);
  const auto* borders = array_at<keys::Border>(sent, borders_at);
  const int64_t per_slice = std::max<int64_t>(std::min(queries.per_slice, n_tiles), 1);
  const DeviceArray<float> bias(context, (pass.spec.multiplicity ? per_slice : 1) * n_clusters);
  if (!pass.spec.multiplicity)
    check(cudaMemsetAsync(bias.data(), 0, static_cast<size_t>(n_clusters) * sizeof(float),
                          context->stream()),
          "no counts");
  // The tokens from `counted` up to `end`, and biases of the tiles whose borders lie there.
  int64_t counted = 0;
  const auto count_up_to = [&](int64_t end, int64_t first_tile, int64_t n_slice) {
    if (!pass.spec.multiplicity) return;
    count_members(*context, {.cluster = cluster + counted,
                             .n = end - counted,
                             .n_clusters = n_clusters,
                             .n_known = counted > 0 ? n_clusters : pass.n_before,
                             .width = n_clusters,
                             .first = counted,
                             .borders = borders + first_tile,
                             .n_tiles = n_slice,
                             .scale = pass.spec.scale,
                             .bias = bias.data(),
                             .before = pass.counts});
    counted = end;
  };
  keys::KeysView view = view_of(pass, queries);
  view.queries.positions = array_at<int32_t>(sent, positions_at);
  view.rows.near = pass.spec.multiplicity ? cluster : array_at<int32_t>(sent, rows_at);
  view.far = {.rows = nullptr,
              .bias = bias.data(),
              .stride = 0,
              .borders = borders,
              .n = array_at<int32_t>(sent, n_far_at),
              .n_borders = n_tiles};
  const bool aligned =
      dense::fits_tiles(pass.spec.dtype, pass.spec.head_dim, pass.args.queries, pass.args.out);
  for (int64_t tile = 0; tile < n_tiles; tile += per_slice) {
    const int64_t n_slice = std::min(per_slice, n_tiles - tile);
    const bool last = tile + n_slice == n_tiles;
    count_up_to(last ? n_tokens : queries.borders[static_cast<size_t>(tile + n_slice - 1)].position,
                tile, n_slice);
    view.tiles = {.all = array_at<keys::QueryTile>(sent, tiles_at) + tile,
                  .only = queries.tiles[static_cast<size_t>(tile)],
                  .n = n_slice};
    keys::attend_keys(context, pass.spec.dtype, aligned, view);
  }
  if (counted < n_tokens) count_up_to(n_tokens, 0, 0);
}

}  // namespace sluice::impl::cuda::copy
