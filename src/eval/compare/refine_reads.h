// What layers of mode `refine` read, counted: near keys, cluster means, members of opened clusters.
// docs/algorithm.md, section 7.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/attention_plan.h"

namespace sluice::impl {

// Keys that queries [first, first + n) of a causal model score in one query head, opened members
// left out.
struct RefineKeys {
  int64_t near = 0;      // from the border on, and sinks
  int64_t clusters = 0;  // means; 0 in heads that have none
  int64_t dense = 0;     // what exact attention scores
};
RefineKeys refine_keys(const LayerPlan& plan, HeadKind kind, int64_t first, int64_t n);
// The same of n queries of an encoder, each of which sees n_tokens.
RefineKeys refine_encoder_keys(const LayerPlan& plan, HeadKind kind, int64_t n_tokens, int64_t n);

// A window that was read from its first token on.
struct RefineWindow {
  int64_t n_heads, n_tokens;
  bool causal = true;
};

// One layer, sums over windows.
class RefineReads {
 public:
  // opened: of RefineAttention, after a window that was read in passes of more than one token
  // unless tile is 1: single queries see other clusters.
  void add(const LayerPlan& plan, const RefineWindow& window, std::span<const int64_t> opened);
  // Adds what was read of other windows by the same plan.
  RefineReads& operator+=(const RefineReads& other);

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(segment_, blocks_);
  }

  // Over what exact attention scores, all query heads.
  double near_fraction() const;
  double clusters_fraction() const;
  double opened_fraction() const;
  std::vector<double> opened_by_head() const;  // (n_heads)
  struct Position {
    int64_t begin;
    double near, clusters, opened;  // over exact attention's, all query heads
  };
  std::vector<Position> by_position() const;  // segments of positions, ascending

  bool empty() const { return blocks_.empty(); }
  double keys() const;  // read, all query heads
  double dense_keys() const;

 private:
  struct Block {
    double near = 0, clusters = 0, dense = 0;  // all query heads
    std::vector<double> opened;                // (n_heads)

    Block& operator+=(const Block& other);
    template <typename Archive>
    void transfer(Archive& archive) {
      archive(near, clusters, dense, opened);
    }
  };
  Block total() const;

  int64_t segment_ = 0;
  std::vector<Block> blocks_;  // (n_segments)
};

}  // namespace sluice::impl
