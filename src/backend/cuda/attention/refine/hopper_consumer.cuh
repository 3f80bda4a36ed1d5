// Refined attention on Hopper: what a consumer warp does with the tiles of an item, for 16 of its
// query rows. One running softmax goes over
//   1. near keys
//   2. means and exact pages: only scores, for the normaliser that decisions compare with
//   3. these again: every row decides what it opens, and reads the rest as means
//   4. members of the opened pages
// Heads without means read exact pages after near keys. The scores of one tile are computed while
// the weights of the one before meet their values.

#pragma once

#include "backend/cuda/attention/refine/hopper_pipeline.cuh"
#include "backend/cuda/attention/refine/output.cuh"

namespace sluice::impl::cuda::refine {

// Dimension d of a query of this warp, in the tile that TMA has swizzled.
template <int kD>
__device__ float query_at(const unsigned char* queries, int warp, int row, int d) {
  const unsigned char* at = queries + d / 64 * Sizes<kD>::kQueryPanel +
                            (warp * 16 + row) * kRowBytes + ((d % 64 / 8) ^ (row % 8)) * 16;
  return static_cast<float>(reinterpret_cast<const __nv_bfloat16*>(at)[d % 8]);
}

// A consumer warp: its accumulators, its softmax, and its places in the rings of tiles.
template <int kD>
struct Consumer {
  using S = Sizes<kD>;
  static constexpr int kN = S::kKeys / 8;

  Shared<kD>& shared;
  const unsigned char* const memory;               // queries, then tiles of keys and of values
  const int warp;                                  // of the consumers
  const uint32_t queries, key_tiles, value_tiles;  // addresses in shared memory
  const float factor;                              // scale * log2(e)
  const float log_page;                            // log(kPage) over the scale of scores
  PipelineState<S::kKeyStages> key_pipe{};
  PipelineState<S::kValueStages> value_pipe{};
  PipelineState<2> decided_pipe{};
  int stage;     // of the keys that scores come from
  int n_opened;  // members, by this lane's rows and columns; of the item at hand

  Softmax softmax;
  float sums[S::kParts][8 * S::kPartPanels][4];
  float scores[kN][4], kept[2];
  uint32_t weights[S::kKeys / 16][4];

  __device__ __forceinline__ Consumer(const RefineView& view, const unsigned char* all_memory,
                                      Shared<kD>& all_shared, int my_warp)
      : shared(all_shared),
        memory(all_memory),
        warp(my_warp),
        queries(shared_address(all_memory) + my_warp / 4 * 64 * kRowBytes),
        key_tiles(shared_address(all_memory) + S::kQueryBytes),
        value_tiles(key_tiles + S::kKeyStages * S::kTileBytes),
        factor(view.scale * kLog2E),
        log_page(kLog2Page / factor) {}

  __device__ __forceinline__ void start_next_scores() {
    const auto now = key_pipe.take();
    stage = now.stage;
    wait_barrier(&shared.keys_here[stage], now.parity);
    wgmma_fence();
    hopper::start_scores<kD>(scores, queries, key_tiles + stage * S::kTileBytes);
  }
  __device__ __forceinline__ void take_next_scores() {
    start_next_scores();
    wgmma_wait<0>();
    hold(scores);
  }
  // Returns the stage of the values.
  __device__ __forceinline__ int start_next_sums() {
    const auto [last, parity] = value_pipe.take();
    wait_barrier(&shared.values_here[last], parity);
    wgmma_fence();
    hopper::start_sums<kD>(sums, weights, value_tiles + last * S::kTileBytes);
    return last;
  }
  __device__ __forceinline__ void finish_sums(int last) {
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
    hopper::release(&shared.values_used[last]);
  }
  __device__ __forceinline__ void take_weights() {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      as_operand(weights[k], scores[2 * k], scores[2 * k + 1]);
  }
  __device__ __forceinline__ void begin_item() {
    n_opened = 0;
    softmax = {};
#pragma unroll
    for (int part = 0; part < S::kParts; ++part)
#pragma unroll
      for (auto& column : sums[part]) column[0] = column[1] = column[2] = column[3] = 0;
  }

  // The first tile of an item. `mask` masks scores.
  template <typename Mask>
  __device__ __forceinline__ void attend_first_tile(const Mask& mask) {
    take_next_scores();
    mask();
    release_keys<ReadBy::kTensorCores>(&shared.keys_used[stage]);
    take_scores(softmax, scores, factor, kept);
    take_weights();
  }
  // The next tile, while the weights of the one before meet their values. kReader: `mask` included.
  template <ReadBy kReader, typename Mask>
  __device__ __forceinline__ void attend_tile(const Mask& mask) {
    start_next_scores();
    const int last = start_next_sums();
    wgmma_wait<1>();
    hold(scores);
    mask();
    release_keys<kReader>(&shared.keys_used[stage]);
    take_scores(softmax, scores, factor, kept);
    hopper::finish_weights(softmax);
    finish_sums(last);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    take_weights();
  }
};

// Near keys, then exact pages where there are no means. In dense heads all far keys count as
// opened.
template <int kD>
__device__ __forceinline__ void attend_near(Consumer<kD>& consumer, const RefineView& view,
                                            const Item& item) {
  using S = Sizes<kD>;
  const LaneRows rows(view, item, consumer.warp);
  // Near keys [seen_begin, seen_end) are seen by all rows of the warp.
  const int seen_begin = __shfl_sync(0xffffffffu, rows.border[1], 31);
  const int seen_end =
      view.causal ? __shfl_sync(0xffffffffu, rows.position[0], 0) + 1 : item.near_end;
  const int near_tiles = max(S::tiles_of(item.near_end - item.near_begin), 1);
  const int n_tiles = near_tiles + (item.has_means() ? 0 : S::tiles_of(item.exact_pages * kPage));
  const auto mask = [&](int tile) {
    Visible visible{};
    if (tile < near_tiles) {
      const int first_key = item.near_begin + tile * S::kKeys;
      if (first_key >= seen_begin && first_key + S::kKeys <= seen_end) return;
      visible = visible_near(view, item, rows, first_key);
    } else {
      visible.end[0] = item.exact_pages * kPage - (tile - near_tiles) * S::kKeys;
      if (visible.end[0] >= S::kKeys) return;
      visible.end[1] = visible.end[0];
    }
    mask_columns(consumer.scores, visible);
  };
  consumer.begin_item();
  consumer.attend_first_tile([&] { mask(0); });
  for (int tile = 1; tile < n_tiles; ++tile)
    consumer.template attend_tile<ReadBy::kTensorCores>([&] { mask(tile); });
  if (item.dense && threadIdx.x % 4 == 0)
    for (int half = 0; half < 2; ++half)
      if (rows.in_pass[half])
        consumer.n_opened +=
            max(static_cast<int>(view.border(rows.position[half]) - view.sinks), 0);
}

// Means of an item and exact pages behind them, as this lane's rows see them.
template <int kD>
struct MeansOf {
  static constexpr int kKeys = Sizes<kD>::kKeys;
  const Item& item;
  LaneRows rows;
  float log_page;  // log(kPage) over the scale of scores
  int tile_rows;   // that decide together

  __device__ __forceinline__ bool all_visible(int page) const {
    return item.one_border && page + kKeys <= item.end_page;
  }
  __device__ __forceinline__ void mask(float (&scores)[kKeys / 8][4], int page) const {
    const int end[2] = {rows.border[0] / kPage - page, rows.border[1] / kPage - page};
    mask_means(scores, end, item.sinks_at() - page, item.means_end() - page, log_page);
  }
};

// The sum that decisions compare with: near keys, and estimates of the means' clusters.
template <int kD>
__device__ __forceinline__ void sum_normaliser(Consumer<kD>& consumer, const MeansOf<kD>& means,
                                               RowEstimates& estimates) {
  LogSum normaliser(consumer.softmax, consumer.factor);
  const Item& item = means.item;
  for (int page = item.first_page; page < item.means_end(); page += Sizes<kD>::kKeys) {
    consumer.take_next_scores();
    if (!means.all_visible(page)) means.mask(consumer.scores, page);
    as_masses(consumer.scores, estimates, consumer.shared.stats[consumer.stage]);
    release_keys<ReadBy::kLanes>(&consumer.shared.keys_used[consumer.stage]);
    normaliser.add(consumer.scores);
  }
  estimates.set_normaliser(normaliser);
}

// Decides which pages of a tile of means are opened and masks them.
template <int kD>
__device__ __forceinline__ void decide_tile(Consumer<kD>& consumer, const MeansOf<kD>& means,
                                            const RowEstimates& estimates, int page) {
  constexpr int kN = Consumer<kD>::kN;
  Shared<kD>& shared = consumer.shared;
  const auto [place, parity] = consumer.decided_pipe.take();
  const bool all = means.all_visible(page);
  if (!all) means.mask(consumer.scores, page);
  uint32_t opened[2];
  ask(opened, consumer.scores, estimates, shared.stats[consumer.stage], means.item.delta);
  for (int half = 0; half < 2; ++half) {
    if (!means.rows.in_pass[half]) opened[half] = 0;
    if (!all) opened[half] &= columns_below<kN>(means.rows.border[half] / kPage - page);
  }
  spread(opened, means.tile_rows, consumer.warp, shared.asked[place]);
  wait_barrier(&shared.decided_used[place], parity ^ 1);
  store_opened<kN>(shared.decided[place][consumer.warp], opened, means.tile_rows);
  arrive(&shared.decided_here[place]);
  for (int half = 0; half < 2; ++half)
    if (means.rows.in_pass[half]) consumer.n_opened += kPage * __popc(opened[half]);
  close_means(consumer.scores, opened, means.log_page);
}

// Means, then members of the opened pages. number: of the item.
template <int kD>
__device__ __forceinline__ void attend_means(Consumer<kD>& consumer, const RefineView& view,
                                             const Item& item, uint32_t number) {
  using S = Sizes<kD>;
  const MeansOf<kD> means{item, LaneRows(view, item, consumer.warp), consumer.log_page,
                          static_cast<int>(view.tile)};
  RowEstimates estimates(view, item.kv_head, [&](int row, int d) {
    return query_at<kD>(consumer.memory, consumer.warp, row, d);
  });
  sum_normaliser(consumer, means, estimates);
  for (int page = item.first_page; page < item.means_end(); page += S::kKeys)
    consumer.template attend_tile<ReadBy::kLanes>(
        [&] { decide_tile(consumer, means, estimates, page); });
  Shared<kD>& shared = consumer.shared;
  for (int page = 0; wait_listed(&shared.listed, number, page + 1) > page; page += S::kPages)
    consumer.template attend_tile<ReadBy::kLanes>(
        [&] { mask_members(consumer.scores, shared.members[consumer.stage][consumer.warp]); });
}

// The last tile meets its values; rows are normalised and written.
template <int kD>
__device__ __forceinline__ void store_item(Consumer<kD>& consumer, const RefineView& view,
                                           const Item& item) {
  using S = Sizes<kD>;
  const int last = consumer.start_next_sums();
  add_lanes(consumer.softmax);
  consumer.finish_sums(last);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part)
    store_rows(view, item.head, LaneRows(view, item, consumer.warp), part * S::kPartPanels * 64,
               consumer.sums[part], consumer.softmax.total);
}

}  // namespace sluice::impl::cuda::refine
