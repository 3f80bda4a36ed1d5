// Mode `copy` by counts: one pass over its rows. attention/copy/kernels.h says how.

#include <algorithm>

#include "backend/cuda/attention/copy/kernels.h"
#include "backend/cuda/runtime/upload.h"

namespace sluice::impl::cuda::copy {
namespace {

// Counts of tiles have room for so many bytes at a time, or for one tile's.
constexpr int64_t kMostBytes = int64_t{1} << 27;

}  // namespace

bool bytes_suffice(std::span<const int32_t> cluster, std::span<const int32_t> positions,
                   int64_t n_clusters) {
  std::vector<uint8_t> members(static_cast<size_t>(n_clusters));
  const size_t n_rows = positions.size(), per_tile = kRepsTileRows;
  bool suffice = true;
  for (size_t row = 0; row < n_rows && suffice; row += per_tile) {
    const auto first = static_cast<size_t>(positions[row]);
    const auto end = static_cast<size_t>(positions[std::min(row + per_tile, n_rows) - 1]) + 1;
    if (end - first <= UINT8_MAX) continue;
    const auto span = cluster.subspan(first, end - first);
    for (const int32_t c : span) suffice &= ++members[static_cast<size_t>(c)] != 0;
    for (const int32_t c : span) members[static_cast<size_t>(c)] = 0;
  }
  return suffice;
}

void attend_counted(const std::shared_ptr<Context>& context, const CountedPass& pass) {
  const auto n_tokens = static_cast<int64_t>(pass.cluster.size());
  const auto n_rows = static_cast<int64_t>(pass.positions.size());
  const int64_t n_keys = pass.rows.n_keys(), width = round_up(n_keys, kRepsTileRows);
  const int64_t n_tiles = ceil_div(n_rows, kRepsTileRows);
  const int64_t room = std::max<int64_t>(kMostBytes / (kRepsTileRows * width), 1);
  const int64_t per_slice = std::min(room, n_tiles);
  std::vector<keys::Border> borders;
  for (int64_t tile = 0; tile < n_tiles; ++tile)
    borders.push_back({pass.positions[static_cast<size_t>(tile * kRepsTileRows)], 0});
  Upload upload;
  const int64_t cluster_at = upload.add(pass.cluster);
  const int64_t positions_at = upload.add(pass.positions);
  const int64_t borders_at = upload.add(std::span<const keys::Border>(borders));
  const DeviceArray<std::byte> sent = upload.send(context);
  const auto* cluster = array_at<int32_t>(sent, cluster_at);
  const DeviceArray<float> before(context, per_slice * width);
  const DeviceArray<uint4> since(context, per_slice * width * (kRepsTileRows / 16));
  int64_t counted = 0;  // tokens
  for (int64_t tile = 0; tile < n_tiles; tile += per_slice) {
    const int64_t n_slice = std::min(per_slice, n_tiles - tile), next = tile + n_slice;
    const int64_t end =
        next == n_tiles ? n_tokens : borders[static_cast<size_t>(next - 1)].position;
    count_members(*context, {.cluster = cluster + counted,
                             .n = end - counted,
                             .n_clusters = n_keys,
                             .n_known = tile > 0 ? n_keys : pass.rows.first_position,
                             .width = width,
                             .first = counted,
                             .borders = array_at<keys::Border>(sent, borders_at) + tile,
                             .n_tiles = n_slice,
                             .scale = 0,
                             .bias = before.data(),
                             .before = pass.counts});
    counted = end;
    count_members_since(*context, {.cluster = cluster,
                                   .positions = array_at<int32_t>(sent, positions_at),
                                   .n_rows = n_rows,
                                   .n_before = pass.rows.first_position,
                                   .width = width,
                                   .first_tile = tile,
                                   .n_tiles = n_slice,
                                   .since = since.data()});
    attend_counted_hopper(*context, {.rows = pass.rows,
                                     .fresh = pass.fresh,
                                     .first_tile = tile,
                                     .n_tiles = n_slice,
                                     .width = width,
                                     .before = before.data(),
                                     .since = since.data()});
  }
}

}  // namespace sluice::impl::cuda::copy
