// What the linear layers of the blocks did with texts, counted. docs/algorithm.md, section 4.

#pragma once

#include <optional>

#include "model/kv_cache.h"

namespace sluice::impl {

// One layer's linear input that was not dense.
struct GroupWork {
  int64_t layer = 0;
  BasisInput input = BasisInput::kAttentionInput;
  GroupPlan plan;
  int64_t n_in = 0;
  LinearCounts counts;

  // Of all tokens; nothing was counted where they are null.
  std::optional<double> fast_path_fraction() const;  // gsi
  std::optional<double> kept_fraction() const;       // graded: of n_in
  std::optional<double> bytes_fraction() const;      // of what dense reads, V's own reads included

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(layer, input, plan, n_in, counts);
  }
};

class LinearWork {
 public:
  // Adds what the gates of a cache counted since it was empty; always from the same plan.
  void add(const KvCache& cache, const ModelSpec& spec);
  // Adds what was counted of the same plan elsewhere.
  LinearWork& operator+=(const LinearWork& other);
  // Adds what another rank counted of the same tokens in layers that are divided by width.
  void add_rank(const LinearWork& other);

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(groups_, elements_, dense_elements_);
  }

  const std::vector<GroupWork>& groups() const { return groups_; }  // by layer, then input
  // Tokens that went by the image, over all tokens of all gsi groups; null without such.
  std::optional<double> fast_path_fraction() const;
  // Elements of weights read, over those that dense layers read, dense groups included; as every
  // matrix has the compute dtype, also the share of bytes. Each token counts as decoded by itself;
  // in `copy` those that are not computed do not count in gated groups.
  double weight_bytes_fraction() const;

 private:
  GroupWork& group_of(int64_t layer, BasisInput input);

  std::vector<GroupWork> groups_;
  double elements_ = 0, dense_elements_ = 0;  // of dense groups too
};

}  // namespace sluice::impl
