// Times of PyTorch's attention on the same device, which sdpa.py wrote in the same session.

#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "cuda/case.h"

namespace sluice::impl::bench {

class PyTorchTimes {
 public:
  // Of the file that the key "pytorch" names, if any. Says so where the file is not there.
  explicit PyTorchTimes(CudaCase& c);
  // Milliseconds of the fastest of its backends.
  std::optional<double> best(int64_t n_tokens, int64_t n_heads, int64_t head_dim) const;

 private:
  std::map<std::tuple<int64_t, int64_t, int64_t>, double> best_;
};

// Milliseconds for a cell of a table; a dash where there are none.
std::string milliseconds_cell(const std::optional<double>& ms);

}  // namespace sluice::impl::bench
