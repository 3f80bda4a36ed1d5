// A text that a model has read so far: the keys and values of its tokens, and the logits after the
// last one.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/model.h"
#include "sluice/plan.h"

namespace sluice {

// Move-only. For one thread at a time, together with its model. After an exception from append() or
// append_scored() only clear() and the destructor may be used.
class SLUICE_API Sequence {
 public:
  // An empty one. capacity: tokens that it may have, 0 for the model's context. Throws Error for a
  // plan that the model cannot follow, a capacity that is negative or beyond the context, and a
  // model without an output matrix.
  explicit Sequence(Model& model, const Plan& plan = {}, int64_t capacity = 0);
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence();

  // Reads tokens after those before: a prompt at once, in pieces, or token by token. Throws Error
  // for none, for ids outside of the vocabulary, for more than there is room for, and, of an
  // encoder, for a second call: it sees a sequence whole. A call that throws for its arguments
  // changes nothing.
  void append(std::span<const int32_t> tokens);
  // The same, and returns the logits after every one of them, (tokens, vocab) row by row.
  std::vector<float> append_scored(std::span<const int32_t> tokens);

  // (vocab), after the last token; of an encoder, at it. Valid until the next call of append(),
  // append_scored(), clear() or truncate(). Throws Error before the first token and after a
  // truncate() that removed some.
  std::span<const float> logits() const;

  int64_t length() const;    // tokens read
  int64_t capacity() const;  // that there is room for
  // Forgets everything. Throws nothing.
  void clear();
  // Forgets the tokens from `length` on. Plans that are not dense can forget all tokens or none;
  // Error for another length, and for one that is negative or more than there are.
  void truncate(int64_t length);

  struct SLUICE_LOCAL State;  // of the library

 private:
  std::unique_ptr<State> state_;
};

}  // namespace sluice
