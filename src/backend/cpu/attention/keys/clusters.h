// Far keys of one key/value head, docs/algorithm.md section 3: what stands for the tokens before
// F(t), kept as sums that grow token by token, and packed for tiles of queries.

#pragma once

#include <vector>

#include "backend/attend.h"
#include "backend/cpu/attention/common/tile.h"

namespace sluice::impl::cpu::keys {

// The kind of a head says how tokens are numbered: by the set's clusters, one number for each
// exempt token (kWindow), or one for each token (kDense). Sums take tokens in order of position,
// so they do not depend on how a prompt is cut.
template <typename T>
class FarKeys {
 public:
  FarKeys(const HeadKeys& head, int64_t head_dim);

  // Makes room for what tokens before `end` may need, so that a prompt does not copy it again and
  // again. Returns how many numbers that is.
  int64_t reserve(const TokenSet* set, int64_t end);
  // Takes in token t, the one after those before; set is unused by dense heads. Returns its number,
  // or -1 when the head drops it.
  int64_t add(const TokenSet* set, int64_t t, const T* key, const T* value);

  int64_t size() const { return static_cast<int64_t>(counts_.size()); }
  const float* counts() const { return counts_.data(); }  // (size) of members
  int64_t bytes() const;

  // Key and value of number j, (head_dim) each, in the compute dtype.
  void read(int64_t j, T* key, T* value) const;
  // scores[j] = dot(query, key j), both f32.
  void dot(const float* query, float* scores) const;
  // sums += sum_j weights[j] * value j. Spoils the weights.
  void mix(float* weights, float* sums) const;

 private:
  bool mean_keys() const { return far_ == FarKey::kCentroid; }
  bool mean_values() const { return far_ != FarKey::kOwn; }
  int64_t number_of(const TokenSet* set, int64_t t) const;

  HeadKind kind_;
  FarKey far_;  // heads without clusters: kOwn, which is exact for a token by itself
  int64_t head_dim_;
  std::vector<float> counts_;                 // (size)
  std::vector<float> key_sums_, value_sums_;  // (size, head_dim) where means stand for members,
  std::vector<T> own_keys_, own_values_;      // (size, head_dim) where one member does
};

// The same, packed. Only numbers that gained a member are written again.
template <typename T>
class FarPanels {
 public:
  FarPanels(const attention::TileShape& shape, int64_t n_expected);

  void touch(int64_t j);                   // number j has changed; negative ones are ignored
  void update(const FarKeys<T>& keys);     // writes what was touched
  void visit(attention::QueryTile& tile);  // all of it, for every query

 private:
  attention::Panels panels() { return {keys_.data(), values_.data()}; }

  attention::TileShape shape_;
  std::vector<int64_t> touched_;
  std::vector<bool> is_touched_;          // (size)
  std::vector<std::byte> keys_, values_;  // (n_blocks) packed blocks
  std::vector<float> counts_;             // (n_blocks * block_keys)
  int64_t size_ = 0;
};

}  // namespace sluice::impl::cpu::keys
