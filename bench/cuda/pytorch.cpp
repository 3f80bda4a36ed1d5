#include "cuda/pytorch.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "io/mapped_file.h"

namespace sluice::impl::bench {

PyTorchTimes::PyTorchTimes(CudaCase& c) {
  const std::string path = c.keys().string_or("pytorch", "");
  if (path.empty()) return;
  if (!std::filesystem::exists(path)) {
    c.table().say(
        fmt::format("Without PyTorch's times: there is no {} (bench/cuda/sdpa.py writes "
                    "it).",
                    path));
    return;
  }
  std::istringstream lines(read_text_file(path, 1 << 20));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int64_t n_tokens = 0, n_heads = 0, head_dim = 0;
    double ms = 0;
    std::string backend;
    if (!(words >> n_tokens >> n_heads >> head_dim >> ms >> backend) || !(ms > 0))
      throw Error(path + ": expected tokens, heads, head size, ms and a name, found \"" +
                  line.substr(0, 80) + "\"");
    const auto [found, is_new] = best_.try_emplace({n_tokens, n_heads, head_dim}, ms);
    if (!is_new) found->second = std::min(found->second, ms);
  }
}

std::optional<double> PyTorchTimes::best(int64_t n_tokens, int64_t n_heads,
                                         int64_t head_dim) const {
  const auto found = best_.find({n_tokens, n_heads, head_dim});
  return found == best_.end() ? std::nullopt : std::optional(found->second);
}

std::string milliseconds_cell(const std::optional<double>& ms) {
  return ms ? fmt::format("{:.3f}", *ms) : "-";
}

}  // namespace sluice::impl::bench
