// Products with block-quantised weights against products with the same shape in bf16, over weights
// that together are larger than the second-level cache.
//
// Keys: "shapes": [{"n_in", "n_out"}], "formats": [], "rows": [], "panel_mib" (of expanded weights;
// the backend's where it is missing).

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/linear/blocks/weights.h"
#include "cuda/case.h"
#include "cuda/timing.h"

namespace sluice::impl::bench {
namespace {

using cuda::linear::BlockWeights;
using cuda::linear::DeviceMatrix;

constexpr int64_t kPanelMib = cuda::linear::BlockMultiplier::kPanelBytes >> 20;

constexpr DType kTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                            DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

DType type_of(const CudaCase& c, const std::string& name) {
  for (const DType type : kTypes)
    if (dtype_name(type) == name) return type;
  throw Error(c.name() + ": there is no block type \"" + name + "\"", "one of them is q8_0");
}

// Random quants; d is 2^-10, and so is e or m, or two quants where a block has none.
std::vector<std::byte> random_row(DType type, int64_t n_in) {
  const BlockSize size = block_size(type);
  std::mt19937 random(1);
  std::vector<std::byte> row(static_cast<size_t>(n_in / size.elements * size.bytes));
  for (std::byte& byte : row) byte = static_cast<std::byte>(random() >> 8);
  constexpr std::byte kHalves[4] = {std::byte{0x00}, std::byte{0x14}, std::byte{0x00},
                                    std::byte{0x14}};
  const int64_t at = type == DType::kQ6_K ? size.bytes - 4 : 0;
  for (int64_t block = 0; block < std::ssize(row); block += size.bytes)
    std::copy_n(kHalves, 4, row.begin() + block + at);
  return row;
}

class Blocks {
 public:
  Blocks(CudaCase& c, DType type, int64_t n_in, int64_t n_out, double speed)
      : c_(c),
        multiplier_(c.context()),
        blocks_(c.context(), multiplier_,
                c.keys().int_or("panel_mib", kPanelMib, 1, 1 << 20) << 20),
        type_(type),
        n_in_(n_in),
        n_out_(n_out),
        speed_(speed) {
    const std::vector<std::byte> row = random_row(type, n_in);
    std::vector<std::byte> rows(static_cast<size_t>(n_out) * row.size());
    for (int64_t i = 0; i < n_out; ++i)
      std::copy(row.begin(), row.end(), rows.begin() + i * std::ssize(row));
    MatrixSource source;
    source.n_out = n_out;
    source.n_in = n_in;
    source.stored = {{0, n_out, type, rows.data()}};
    const int64_t n_copies = 1 + 2 * kCacheBytes / std::ssize(rows);
    for (int64_t i = 0; i < n_copies; ++i)
      weights_.push_back(cuda::linear::pack_blocks(c.context(), source, DType::kBF16));
    const int64_t n_plain = 1 + 2 * kCacheBytes / (2 * n_in * n_out);
    for (int64_t i = 0; i < n_plain; ++i)
      plain_.push_back(random_matrix(c.context(), DType::kBF16, n_out, n_in, 7));
  }

  void run(int64_t n_rows) {
    const DeviceMatrix x = random_matrix(c_.context(), DType::kBF16, n_rows, n_in_, 3);
    const DeviceMatrix out(c_.context(), DType::kBF16, n_rows, n_out_);
    const LinearArgs args{.weights = nullptr, .x = x.rows, .out = out.rows};
    const auto at = [](const auto& list, int round) -> const auto& {
      return list[static_cast<size_t>(round) % list.size()];
    };
    // What a step does: recorded, kernel after kernel.
    const auto time = [&](const std::function<void(int)>& work) {
      return n_rows > cuda::linear::kFewBlockRows
                 ? time_runs(*c_.context(), c_.rounds(kUsualRounds), work)
                 : time_recorded(*c_.context(), c_.rounds(kUsualRounds), 20, work);
    };
    const Timing blocks = time([&](int round) { blocks_.run(*at(weights_, round), args); });
    const Timing plain = time(
        [&](int round) { multiplier_.run(at(plain_, round), cuda::linear::DeviceBias(), args); });
    report(n_rows, blocks, plain);
  }

 private:
  void report(int64_t n_rows, const Timing& t, const Timing& plain) {
    const int64_t bytes = weights_.front()->bytes();
    const double rate = static_cast<double>(bytes) / t.median * 1e-9;
    const std::string type(dtype_name(type_));
    c_.table().row({type, fmt::format("{}", n_rows), fmt::format("{}", n_in_),
                    fmt::format("{}", n_out_), fmt::format("{:.1f}", 1e3 * t.median),
                    fmt::format("{:.2f}", t.spread), fmt::format("{:.2f}", rate),
                    fmt::format("{:.2f}", rate / speed_), fmt::format("{:.1f}", 1e3 * plain.median),
                    fmt::format("{:.2f}", plain.median / t.median)});
    c_.record(fmt::format("{}x{} {} rows {}", n_in_, n_out_, n_rows, type), type, t,
              {{"n_tokens", n_rows},
               {"n_in", n_in_},
               {"n_out", n_out_},
               {"bytes_read", bytes},
               {"tokens_per_s", 1e3 * static_cast<double>(n_rows) / t.median},
               {"gb_per_s", 1e3 * rate},
               {"baseline", "read"},
               {"baseline_gb_per_s", 1e3 * speed_},
               {"share_of_baseline", rate / speed_},
               {"speedup_vs_dense", plain.median / t.median}});
  }

  CudaCase& c_;
  cuda::linear::Multiplier multiplier_;
  cuda::linear::BlockMultiplier blocks_;
  DType type_;
  int64_t n_in_, n_out_;
  double speed_;  // TB/s
  std::vector<std::unique_ptr<BlockWeights>> weights_;
  std::vector<DeviceMatrix> plain_;
};

}  // namespace

void run_blocks(CudaCase& c) {
  const std::vector<int64_t> rows = integers(c.keys(), "rows", 1, kMostTokens);
  const std::vector<std::string> formats = c.keys().strings("formats");
  if (formats.empty()) c.keys().refuse("formats", "a list of block types");
  const double speed = read_bandwidth(c.context());
  c.table().say(fmt::format("reading alone: {:.2f} TB/s", speed));
  c.table().columns({"format", "rows", "inputs", "outputs", "us", "spread", "TB/s", "of reading",
                     "bf16 us", "times bf16"});
  for (const ConfigReader& shape : c.objects("shapes"))
    for (const std::string& format : formats) {
      const DType type = type_of(c, format);
      const int64_t n_in = shape.require_int("n_in", 1, kMostWidth);
      if (n_in % block_size(type).elements != 0)
        shape.refuse("n_in", "a multiple of " + std::to_string(block_size(type).elements));
      Blocks blocks(c, type, n_in, shape.require_int("n_out", 1, kMostWidth), speed);
      for (const int64_t n_rows : rows) blocks.run(n_rows);
    }
}

}  // namespace sluice::impl::bench
