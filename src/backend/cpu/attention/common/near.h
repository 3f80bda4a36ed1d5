// Near keys of one key/value head, docs/algorithm.md section 3: the tokens from F(t) on, as they
// are, and packed for tiles of queries.

#pragma once

#include <vector>

#include "backend/cpu/attention/common/tile.h"

namespace sluice::impl::cpu::attention {

// Keys and values by position: recent ones kept here, then those of the pass at hand.
template <typename T>
class HeadTokens {
 public:
  HeadTokens(int64_t head, int64_t head_dim) : head_(head), head_dim_(head_dim) {}

  // A pass brings keys and values, (n_tokens, n_kv_heads, head_dim), of the tokens that follow.
  void begin_pass(const ConstTensor& keys, const ConstTensor& values) {
    pass_keys_ = keys;
    pass_values_ = values;
    first_of_pass_ = end();
  }
  const T* key(int64_t t) const { return at(keys_, pass_keys_, t); }
  const T* value(int64_t t) const { return at(values_, pass_values_, t); }

  // Forgets what lies before t.
  void drop_before(int64_t t) {
    const int64_t n = (std::min(t, end()) - first_) * head_dim_;
    keys_.erase(keys_.begin(), keys_.begin() + n);
    values_.erase(values_.begin(), values_.begin() + n);
    first_ = t;
  }
  // Forgets t and what follows it.
  void drop_from(int64_t t) {
    const auto n = static_cast<size_t>((t - first_) * head_dim_);
    keys_.resize(n);
    values_.resize(n);
  }
  // Takes the rest of the pass in; from then on all tokens from the first on are contiguous.
  void keep_pass() {
    for (int64_t t = end(); t < first_of_pass_ + pass_keys_.rows(); ++t) {
      const T *from_key = key(t), *from_value = value(t);
      keys_.insert(keys_.end(), from_key, from_key + head_dim_);
      values_.insert(values_.end(), from_value, from_value + head_dim_);
    }
  }
  int64_t bytes() const { return static_cast<int64_t>(2 * keys_.size() * sizeof(T)); }

 private:
  int64_t end() const { return first_ + static_cast<int64_t>(keys_.size()) / head_dim_; }
  const T* at(const std::vector<T>& kept, const ConstTensor& pass, int64_t t) const {
    return t < end() ? kept.data() + (t - first_) * head_dim_
                     : pass.row<T>(t - first_of_pass_) + head_ * head_dim_;
  }

  int64_t head_, head_dim_;
  int64_t first_ = 0;             // position of the first one kept
  std::vector<T> keys_, values_;  // (n_kept, head_dim)
  ConstTensor pass_keys_, pass_values_;
  int64_t first_of_pass_ = 0;
};

// Packed near keys: a ring of blocks that start at multiples of their size.
template <typename T>
class NearPanels {
 public:
  // For queries in blocks of `block`, which together see `span` keys or less.
  NearPanels(const TileShape& shape, int64_t block, int64_t span)
      : shape_(shape),
        n_keys_(block <= shape.block_keys ? shape.block_keys / block * block
                                          : ceil_div(block, ceil_div(block, shape.block_keys))),
        n_slots_(span / n_keys_ + 2),
        keys_(static_cast<size_t>(n_slots_ * shape.key_bytes)),
        values_(static_cast<size_t>(n_slots_ * shape.value_bytes)) {}

  // The n queries of `tile` stand at positions from `first` on; each sees keys [begin, itself].
  void visit(const HeadTokens<T>& tokens, int64_t begin, int64_t first, int64_t n,
             QueryTile& tile) {
    fill(tokens, begin, first + n);
    for (int64_t i = begin / n_keys_; i * n_keys_ < first + n; ++i)
      tile.visit(panels().from(shape_, i % n_slots_), {.n_keys = n_keys_,
                                                       .begin = begin - i * n_keys_,
                                                       .end = first + 1 - i * n_keys_,
                                                       .end_step = 1});
  }

 private:
  static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
  Panels panels() { return {keys_.data(), values_.data()}; }

  // Packs those of tokens [begin, end) that are not there yet.
  void fill(const HeadTokens<T>& tokens, int64_t begin, int64_t end) {
    for (int64_t t = std::max(begin, filled_); t < end; ++t)
      put_row(shape_, panels(), t / n_keys_ % n_slots_ * shape_.block_keys + t % n_keys_,
              tokens.key(t), tokens.value(t));
    filled_ = std::max(filled_, end);
  }

  const TileShape& shape_;
  int64_t n_keys_;   // of a block: whole blocks of queries, or equal parts of one
  int64_t n_slots_;  // enough for a span that begins and ends within a block
  int64_t filled_ = 0;
  std::vector<std::byte> keys_, values_;  // (n_slots) packed blocks
};

}  // namespace sluice::impl::cpu::attention
