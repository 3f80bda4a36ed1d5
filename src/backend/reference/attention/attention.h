// Attention as plain loops: exact, on clusters of keys, and among representatives.

#pragma once

#include "backend/backend.h"
#include "backend/reference/common/kept.h"

namespace sluice::impl::reference::attention {

// A key and its value, head_dim numbers each, that stand for `count` tokens.
struct CountedKey {
  double count;
  std::vector<double> key, value;
};
// One for every row of keys and values (n_rows, n_kv_heads * head_dim), of count 1.
std::vector<CountedKey> counted_keys(const KeptRows& keys, const KeptRows& values, int64_t kv_head,
                                     int64_t head_dim);

// One query head: out = sum p_j value_j, p the softmax of q . key_j * scale + log count_j.
struct AttendHeadArgs {
  ConstTensor queries;  // (n_rows, n_heads, head_dim)
  int64_t row, head;
  double scale;
  std::span<const CountedKey* const> keys;
  Tensor out;  // (n_rows, n_heads, head_dim)
};
// Returns the log of the sum of exp of the scores.
double attend_head(const AttendHeadArgs& args);

void store_kv(const StoreKvArgs& args);
void attend_dense(const AttendDenseArgs& args);
std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec);
std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec);

}  // namespace sluice::impl::reference::attention
