// Exact attention of a ragged batch: sequences with lengths and caches of their own, whose new rows
// are stacked in one pass.

#pragma once

#include <span>

#include "backend/attention_ops.h"

namespace sluice::impl {

// One sequence of a ragged batch.
struct RaggedSequence {
  KvView cache;            // (1, n_kv_heads, capacity, head_dim); capacities may differ
  int64_t first_row = 0;   // of its new tokens, among the rows of the pass
  int64_t n_tokens = 1;    // new ones
  int64_t first_position;  // of the first of them
};

struct AttendRaggedArgs {
  // Of all rows, rotated: queries and out are (n_rows, n_heads, head_dim). Cache, n_tokens and
  // first_position are those of each sequence instead.
  AttendDenseArgs attend;
  ConstTensor keys;    // (n_rows, n_kv_heads, head_dim), rotated
  ConstTensor values;  // (n_rows, n_kv_heads, head_dim)
  std::span<const RaggedSequence> sequences;

  // What store_kv() and attend_dense() take for one of them.
  StoreKvArgs store_of(const RaggedSequence& sequence) const {
    return {.keys = keys.rows_from(sequence.first_row, sequence.n_tokens),
            .values = values.rows_from(sequence.first_row, sequence.n_tokens),
            .n_tokens = sequence.n_tokens,
            .first_position = sequence.first_position,
            .cache = sequence.cache};
  }
  AttendDenseArgs attend_of(const RaggedSequence& sequence) const {
    AttendDenseArgs one = attend;
    one.queries = attend.queries.rows_from(sequence.first_row, sequence.n_tokens);
    one.out = attend.out.rows_from(sequence.first_row, sequence.n_tokens);
    one.cache = sequence.cache;
    one.n_tokens = sequence.n_tokens;
    one.first_position = sequence.first_position;
    return one;
  }
};

}  // namespace sluice::impl
