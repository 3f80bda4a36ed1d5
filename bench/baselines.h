// What the machine can do at best: matrix products and nothing else, and reading memory.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace sluice::impl::bench {

// The linear layers of a model at one height, multiplied one after another by one provider.
class BareProducts {
 public:
  virtual ~BareProducts() = default;
  virtual std::string name() const = 0;
  virtual void run() = 0;  // every product of one pass over the model
};

// All providers this build and machine have: our kernels, oneDNN, OpenBLAS (f32).
std::vector<std::unique_ptr<BareProducts>> bare_products(const ModelSpec& spec, DType dtype,
                                                         int64_t n_rows);

// Operations of the layers' products (the head is left out, here and in the timing) and of causal
// attention.
double linear_flops(const ModelSpec& spec, int64_t n_rows);
double attention_flops(const ModelSpec& spec, int64_t n_tokens);

// The sum of all words, which one thread reads in several streams at once: faster than in one.
uint64_t read_in_streams(std::span<const uint64_t> words);

// Reads a buffer from end to end with every thread.
class PlainRead {
 public:
  explicit PlainRead(int64_t n_bytes);
  uint64_t run() const;

 private:
  Buffer buffer_;
};

}  // namespace sluice::impl::bench
