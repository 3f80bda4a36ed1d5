// Which keys queries read: a chooser for each baseline.

#pragma once

#include <memory>
#include <vector>

#include "backend/baseline.h"

namespace sluice::impl::cpu::baseline {

struct KeyRange {
  int64_t begin, end;  // positions
  bool operator==(const KeyRange&) const = default;
};
// Appends a range that begins at or after the end of the last.
void add_range(std::vector<KeyRange>& ranges, KeyRange range);

// The keys of a sequence so far.
struct CachedKeys {
  const float* rows;  // (n_kv_heads, capacity, head_dim)
  int64_t capacity, head_dim;
  int64_t n_tokens;

  const float* row(int64_t kv_head, int64_t t) const {
    return rows + (kv_head * capacity + t) * head_dim;
  }
};

// Queries of one head that follow each other and choose together.
struct QueryGroup {
  int64_t kv_head;
  int64_t first, n;      // positions
  const float* queries;  // (n, head_dim), not scaled
};

class Chooser {
 public:
  virtual ~Chooser() = default;
  // Queries of a group: 1, or those of a block of kBaselineBlock that are in one pass.
  virtual int64_t group() const = 0;
  // The tokens from `first` on are new.
  virtual void take_in(const CachedKeys& /*keys*/, int64_t /*first*/) {}
  // Fills `read`: ascending, apart, and cut off behind a query by whoever reads it. Called from
  // several threads.
  virtual void choose(const CachedKeys& keys, const QueryGroup& group,
                      std::vector<KeyRange>& read) const = 0;
  // Keys that the query at t reads in order to choose.
  virtual int64_t keys_to_choose(int64_t /*t*/) const { return 0; }
};

std::unique_ptr<Chooser> make_window(const BaselineSpec& spec);
std::unique_ptr<Chooser> make_quest(const BaselineSpec& spec);
std::unique_ptr<Chooser> make_pooled(const BaselineSpec& spec);
std::unique_ptr<Chooser> make_oracle(const BaselineSpec& spec);

}  // namespace sluice::impl::cpu::baseline
