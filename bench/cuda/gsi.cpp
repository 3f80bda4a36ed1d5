// The four linear groups of a GPT-J 6B layer, one token at a time, by dense products and by gates
// that are all open.

#include <fmt/format.h>

#include <cmath>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/subspace/subspace.h"
#include "timing.h"

namespace sluice::impl::bench {

using cuda::Context;
using cuda::DeviceArray;
using cuda::DeviceMatrix;
using cuda::DeviceWeights;

namespace {

constexpr int64_t kRank = 256;

// (kRank, n) random orthonormal rows, and one row in their span.
struct Span {
  std::vector<float> vectors, row;
};
Span random_span(int64_t n) {
  Span span;
  span.row.resize(static_cast<size_t>(n));
  uint32_t seed = 11;
  const auto random = [&] {
    seed = seed * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(seed) >> 8) * 0x1p-23f;
  };
  for (int64_t i = 0; i < kRank * n; ++i) span.vectors.push_back(random());
  const auto vector = [&](int64_t j) { return span.vectors.data() + j * n; };
  const auto dot = [&](const float* a, const float* b) {
    float sums[16] = {};
    for (int64_t i = 0; i < n; i += 16)
      for (int64_t k = 0; k < 16; ++k) sums[k] += a[i + k] * b[i + k];
    float sum = 0;
    for (const float part : sums) sum += part;
    return sum;
  };
  for (int64_t j = 0; j < kRank; ++j) {
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t other = 0; other < j; ++other) {
        const float overlap = dot(vector(j), vector(other));
        for (int64_t i = 0; i < n; ++i) vector(j)[i] -= overlap * vector(other)[i];
      }
    const float length = std::sqrt(dot(vector(j), vector(j))), part = random();
    for (int64_t i = 0; i < n; ++i) {
      vector(j)[i] /= length;
      span.row[static_cast<size_t>(i)] += part * vector(j)[i];
    }
  }
  return span;
}

struct Group {
  const char* name;
  int64_t n_in, n_out;
  Activation activation;
  bool accumulate;
};
constexpr Group kGroups[] = {{"q, k, v", 4096, 12288, Activation::kNone, false},
                             {"attention output", 4096, 4096, Activation::kNone, true},
                             {"MLP input", 4096, 16384, Activation::kGeluTanh, false},
                             {"MLP inner", 16384, 4096, Activation::kNone, true}};
constexpr size_t kAll = std::size(kGroups);
// The smallest of the groups, by gates, is then larger than the second-level cache.
constexpr int kLayers = 20;

struct Layer {
  std::vector<std::unique_ptr<cuda::DeviceBasis>> bases;
  std::vector<std::unique_ptr<DeviceWeights>> images, dense;
  std::vector<std::unique_ptr<RowGate>> gates;
};

double dense_bytes(size_t group) {
  return 2.0 * static_cast<double>(kGroups[group].n_in * kGroups[group].n_out);
}
double fast_bytes(size_t group) {
  return 2.0 * static_cast<double>(kRank * (kGroups[group].n_in + kGroups[group].n_out));
}

}  // namespace

void bench_gsi(const std::shared_ptr<Context>& context) {
  cuda::Multiplier multiplier(context);
  const double read = read_bandwidth(context);
  const Span narrow = random_span(4096), wide = random_span(16384);
  const auto row_of = [&](const Span& span) {
    const auto n = static_cast<int64_t>(span.row.size());
    const DeviceArray<float> values(context, std::span<const float>(span.row));
    DeviceMatrix row(context, DType::kBF16, 1, n);
    cuda::convert(*context, ConstTensor(values.data(), DType::kF32, {1, n}, Device::kCuda),
                  row.rows);
    return row;
  };
  const DeviceMatrix rows[2] = {row_of(narrow), row_of(wide)};
  std::vector<DeviceMatrix> outs;
  std::vector<Layer> layers(kLayers);
  for (size_t g = 0; g < kAll; ++g) {
    const Group& group = kGroups[g];
    outs.emplace_back(context, group.accumulate ? DType::kF32 : DType::kBF16, 1, group.n_out);
    for (int l = 0; l < kLayers; ++l) {
      Layer& layer = layers[static_cast<size_t>(l)];
      const auto seed = static_cast<uint32_t>(100 * l) + static_cast<uint32_t>(g);
      const auto weights = [&](int64_t width) {
        return std::make_unique<DeviceWeights>(
            random_matrix(context, DType::kBF16, group.n_out, width, seed),
            cuda::DeviceBias(context, std::vector<float>(static_cast<size_t>(group.n_out), 0.3f)));
      };
      layer.bases.push_back(cuda::make_basis(context,
                                             group.n_in == 4096 ? narrow.vectors : wide.vectors,
                                             kRank, group.n_in, DType::kBF16));
      layer.images.push_back(weights(kRank));
      layer.dense.push_back(weights(group.n_in));
      layer.gates.push_back(cuda::make_gate(context, multiplier,
                                            {
                                                .dense = layer.dense.back().get(),
                                                .epsilon = 0.1,
                                                .basis = layer.bases.back().get(),
                                                .image = layer.images.back().get(),
                                            }));
    }
  }
  const auto args_of = [&](size_t g) {
    return LinearArgs{.weights = nullptr,
                      .x = rows[kGroups[g].n_in == 4096 ? 0 : 1].rows,
                      .activation = kGroups[g].activation,
                      .accumulate = kGroups[g].accumulate,
                      .out = outs[g].rows};
  };
  const auto dense = [&](int round, size_t g) {
    const DeviceWeights& weights = *layers[static_cast<size_t>(round)].dense[g];
    multiplier.run(weights.matrix, weights.bias, args_of(g));
  };
  const auto gated = [&](int round, size_t g) {
    RowGate& gate = *layers[static_cast<size_t>(round)].gates[g];
    gate.forget();
    gate.run(args_of(g), 0);
  };
  fmt::print("\none token, k = {}, reading alone {:.2f} TB/s; us\n", kRank, read);
  fmt::print("{:<18} {:>8} {:>6} {:>8} {:>8} {:>6} {:>7} {:>9} {:>9}\n", "group", "dense",
             "of read", "by gate", "MB read", "of read", "spread", "speed-up", "against reading");
  const auto line = [&](const char* name, double whole, double part,
                        const std::function<void(int)>& by_dense,
                        const std::function<void(int)>& by_gate) {
    const Timing slow = time_recorded(*context, kLayers, by_dense);
    const Timing fast = time_recorded(*context, kLayers, by_gate);
    const double at_full = whole / read * 1e-9;  // ms
    fmt::print("{:<18} {:>8.1f} {:>6.2f} {:>8.1f} {:>8.1f} {:>6.2f} {:>7.2f} {:>8.1f}x {:>8.1f}x\n",
               name, 1e3 * slow.median, at_full / slow.median, 1e3 * fast.median, 1e-6 * part,
               part / read * 1e-9 / fast.median, fast.spread, slow.median / fast.median,
               at_full / fast.median);
  };
  double whole = 0, part = 0;
  for (size_t g = 0; g < kAll; ++g) {
    whole += dense_bytes(g);
    part += fast_bytes(g);
    line(
        kGroups[g].name, dense_bytes(g), fast_bytes(g), [&](int round) { dense(round, g); },
        [&](int round) { gated(round, g); });
  }
  line(
      "all four", whole, part,
      [&](int round) {
        for (size_t g = 0; g < kAll; ++g) dense(round, g);
      },
      [&](int round) {
        for (size_t g = 0; g < kAll; ++g) gated(round, g);
      });
  int n_fast = 0, n_rows = 0;
  float most = 0;
  for (const Layer& layer : layers)
    for (const auto& gate : layer.gates)
      for (const RowDecision& decision : gate->take()) {
        n_fast += decision.kept;
        ++n_rows;
        most = std::max(most, decision.residual);
      }
  fmt::print("fast: {} of {}, which miss up to {:.4f}\n", n_fast, n_rows, most);
}

}  // namespace sluice::impl::bench
