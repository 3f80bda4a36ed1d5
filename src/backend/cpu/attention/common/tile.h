// What every attention of this folder has in common: blocks of packed keys and values, and a tile
// of queries that passes over them with an online softmax, so that nothing of size n_tokens x
// n_tokens exists. docs/algorithm.md, section 3.

#pragma once

#include <algorithm>
#include <vector>

#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/primitives/score_rows.h"
#include "core/tensor.h"

namespace sluice::impl::cpu::attention {

// Fewer queries than this go row by row: packing the keys would cost more than it saves.
constexpr int64_t kMinPackedQueries = 8;

inline int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Sizes of tiles and of packed blocks, for one compute dtype and head size.
struct TileShape {
  // Blocks have n_keys keys, rounded up to whole panels.
  TileShape(DType dtype, int64_t head_dim, int64_t n_keys = 128);

  int64_t blocks(int64_t n_keys) const { return (n_keys + block_keys - 1) / block_keys; }

  const gemm::Kernel& kernel;
  int64_t head_dim, padded_dim;    // padded to whole panels
  int64_t block_keys;              // whole panels
  int64_t block_queries;           // rows of a tile
  int64_t key_bytes, value_bytes;  // of one packed block
};

// Packed blocks, one after another. The memory starts as zeros: what no row is put into is
// multiplied by weights of zero, and must be finite.
struct Panels {
  std::byte* keys;    // (n_blocks, block_keys / nr) panels of depth head_dim
  std::byte* values;  // (n_blocks, padded_dim / nr) panels of depth block_keys

  Panels from(const TileShape& shape, int64_t block) const {
    return {keys + block * shape.key_bytes, values + block * shape.value_bytes};
  }
};

// Writes a key and its value, both (head_dim), at `index` of the panels. T is the compute dtype.
template <typename T>
void put_row(const TileShape& shape, Panels panels, int64_t index, const T* key, const T* value);

// The same for n rows that lie side by side, (n, head_dim); they stay within one block.
template <typename T>
void put_rows(const TileShape& shape, Panels panels, int64_t index, int64_t n, const T* keys,
              const T* values);

// Which keys of a block the queries of a tile see: query i those of [begin + i * begin_step,
// end + i * end_step), as far as the block has them.
struct Mask {
  int64_t n_keys;  // of the block
  int64_t begin = 0, end;
  int64_t begin_step = 0, end_step = 0;  // 0 or 1

  int64_t begin_of(int64_t i) const {
    return std::clamp<int64_t>(begin + i * begin_step, 0, n_keys);
  }
  int64_t end_of(int64_t i) const { return std::clamp<int64_t>(end + i * end_step, 0, n_keys); }
};

// What the rows of a block are multiplied by, where panels hold them as integers: (n_keys) each.
struct RowScales {
  const float* keys;
  const float* values;
};

// Memory of a tile, which each thread keeps for the next one.
struct TileScratch {
  std::vector<std::byte> queries;  // (block_queries, query_stride) a_dtype
  std::vector<float> scores;       // (block_queries, score_stride)
  std::vector<std::byte> weights;  // (block_queries, score_stride) a_dtype, when it is not f32
  std::vector<float> sums;         // (block_queries, padded_dim)
  std::vector<primitives::SoftmaxState> state;
  std::vector<int64_t> columns;  // (block_queries) of scores, whole panels; mr rows have the same
};

// Some queries of one head, with their running softmax over blocks of keys.
class QueryTile {
 public:
  // cap: of scores before they are scaled (AttendDenseArgs::unscaled_cap), 0 for none.
  QueryTile(const TileShape& shape, float scale, TileScratch& scratch, float cap = 0);

  // Queries at rows [row, row + n) of (…, n_heads, head_dim), n <= block_queries.
  void load(const ConstTensor& queries, int64_t row, int64_t n, int64_t head);

  // Passes over one block. counts(i) -> of equal keys each key stands for in the eyes of query i,
  // or null for ones; finite for the whole block. It is asked in order of i.
  template <typename Counts>
  void visit(Panels block, const Mask& mask, const Counts& counts) {
    score(block, mask);
    for (int64_t i = 0; i < n_; ++i) {
      soften(i, mask, counts(i));
      narrow_weights(i);
    }
    mix(block);
  }
  void visit(Panels block, const Mask& mask) {
    visit(block, mask, [](int64_t) { return nullptr; });
  }

  // Passes over one block whose rows have scales.
  void visit_scaled(Panels block, const Mask& mask, const RowScales& scales);

  // Passes over the first n_keys keys of a block. hide(i, scores) sets scores of query i that it
  // does not see to -inf.
  template <typename Hide>
  void visit_hidden(Panels block, int64_t n_keys, const Hide& hide) {
    const Mask mask{.n_keys = n_keys, .end = n_keys};
    score(block, mask);
    for (int64_t i = 0; i < n_; ++i) {
      hide(i, s_.scores.data() + i * score_stride());
      soften(i, mask, nullptr);
      narrow_weights(i);
    }
    mix(block);
  }

  // The scores of the first n_keys keys of a block, not scaled: row i at scores + i * stride,
  // written up to whole panels.
  void score_block(Panels block, int64_t n_keys, float* scores, int64_t stride);
  // Passes over the block with these scores.
  template <typename Counts>
  void visit_scored(Panels block, int64_t n_keys, const float* scores, int64_t stride,
                    const Counts& counts) {
    const Mask mask{.n_keys = n_keys, .end = n_keys};
    set_columns(mask);
    for (int64_t i = 0; i < n_; ++i) {
      std::copy_n(scores + i * stride, n_keys, s_.scores.data() + i * score_stride());
      soften(i, mask, counts(i));
      narrow_weights(i);
    }
    mix(block);
  }

  void store(const Tensor& out, int64_t row, int64_t head);
  // Of query i: the log of the sum of exp of its scores.
  float log_sum(int64_t i) const { return s_.state[static_cast<size_t>(i)].log_sum(); }

 private:
  int64_t score_stride() const { return shape_.block_keys + 16; }
  void set_columns(const Mask& mask);
  void score_columns(const std::byte* keys, float* scores, int64_t stride) const;
  void score(Panels block, const Mask& mask);
  void soften(int64_t i, const Mask& mask, const float* counts);
  void narrow_weights(int64_t i);
  void mix(Panels block);

  const TileShape& shape_;
  float scale_, cap_;
  TileScratch& s_;
  int64_t query_stride_;
  int64_t n_ = 0;
};

}  // namespace sluice::impl::cpu::attention
