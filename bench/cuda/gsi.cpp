// The linear groups of a layer, one token at a time, by dense products and by gates that are all
// open.
//
// Keys: "mode": "gsi", "rank", "layers": copies of a layer, so many that the smallest group is, by
// gates, larger than the second-level cache; "groups": [{"name", "n_in" (a multiple of 16),
// "n_out", "gelu": true, "residual": true}].

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/subspace/subspace.h"
#include "cuda/case.h"
#include "cuda/timing.h"

namespace sluice::impl::bench {
namespace {

using cuda::DeviceArray;
using cuda::linear::DeviceMatrix;
using cuda::linear::DeviceWeights;

// (rank, n) random orthonormal rows, and one row in their span. n: a multiple of 16.
struct Span {
  std::vector<float> vectors, row;
};
Span random_span(int64_t rank, int64_t n) {
  Span span;
  span.row.resize(static_cast<size_t>(n));
  uint32_t seed = 11;
  const auto random = [&] {
    seed = seed * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(seed) >> 8) * 0x1p-23f;
  };
  for (int64_t i = 0; i < rank * n; ++i) span.vectors.push_back(random());
  const auto vector = [&](int64_t j) { return span.vectors.data() + j * n; };
  const auto dot = [&](const float* a, const float* b) {
    float sums[16] = {};
    for (int64_t i = 0; i < n; i += 16)
      for (int64_t k = 0; k < 16; ++k) sums[k] += a[i + k] * b[i + k];
    float sum = 0;
    for (const float part : sums) sum += part;
    return sum;
  };
  for (int64_t j = 0; j < rank; ++j) {
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
  std::string name;
  int64_t n_in, n_out;
  Activation activation;
  bool accumulate;
};
Group read_group(const ConfigReader& keys, int64_t rank) {
  Group group = {
      .name = keys.require_string("name"),
      .n_in = keys.require_int("n_in", rank, kMostWidth),
      .n_out = keys.require_int("n_out", 1, kMostWidth),
      .activation = keys.bool_or("gelu", false) ? Activation::kGeluTanh : Activation::kNone,
      .accumulate = keys.bool_or("residual", false)};
  if (group.n_in % 16 != 0) keys.refuse("n_in", "a multiple of 16");
  return group;
}

struct Layer {
  std::vector<std::unique_ptr<cuda::subspace::DeviceBasis>> bases;
  std::vector<std::unique_ptr<DeviceWeights>> images, dense;
  std::vector<std::unique_ptr<RowGate>> gates;
};

class GatedLayers {
 public:
  GatedLayers(const std::shared_ptr<cuda::Context>& context, std::vector<Group> groups,
              int64_t rank, int64_t n_layers)
      : context_(context),
        multiplier_(context),
        groups_(std::move(groups)),
        rank_(rank),
        layers_(static_cast<size_t>(n_layers)) {
    for (const Group& group : groups_) {
      outs_.emplace_back(context, group.accumulate ? DType::kF32 : DType::kBF16, 1, group.n_out);
      if (spans_.contains(group.n_in)) continue;
      const Span& span = spans_[group.n_in] = random_span(rank, group.n_in);
      const DeviceArray<float> values(context, std::span<const float>(span.row));
      DeviceMatrix& row = rows_[group.n_in] = DeviceMatrix(context, DType::kBF16, 1, group.n_in);
      cuda::elementwise::convert(
          *context, ConstTensor(values.data(), DType::kF32, {1, group.n_in}, Device::kCuda),
          row.rows);
    }
    uint32_t seed = 0;
    for (Layer& layer : layers_) {
      for (size_t g = 0; g < groups_.size(); ++g)
        add_group(layer, groups_[g], seed + static_cast<uint32_t>(g));
      seed += 100;
    }
  }

  const std::vector<Group>& groups() const { return groups_; }
  int n_layers() const { return static_cast<int>(layers_.size()); }
  double dense_bytes(size_t g) const {
    return 2.0 * static_cast<double>(groups_[g].n_in * groups_[g].n_out);
  }
  double fast_bytes(size_t g) const {
    return 2.0 * static_cast<double>(rank_ * (groups_[g].n_in + groups_[g].n_out));
  }

  void dense(int layer, size_t g) {
    const DeviceWeights& weights = *layers_[static_cast<size_t>(layer)].dense[g];
    multiplier_.run(weights.matrix, weights.bias, args_of(g));
  }
  void gated(int layer, size_t g) {
    RowGate& gate = *layers_[static_cast<size_t>(layer)].gates[g];
    gate.forget();
    gate.run(args_of(g), 0);
  }

  struct Decided {
    int n_fast = 0, n_rows = 0;
    float most = 0;  // residual
  };
  // Of the last run of every gate.
  Decided decided() const {
    Decided all;
    for (const Layer& layer : layers_)
      for (const auto& gate : layer.gates)
        for (const RowDecision& decision : gate->take()) {
          all.n_fast += decision.kept;
          ++all.n_rows;
          all.most = std::max(all.most, decision.residual);
        }
    return all;
  }

 private:
  void add_group(Layer& layer, const Group& group, uint32_t seed) {
    const auto weights = [&](int64_t width) {
      return std::make_unique<DeviceWeights>(
          random_matrix(context_, DType::kBF16, group.n_out, width, seed),
          cuda::linear::DeviceBias(context_,
                                   std::vector<float>(static_cast<size_t>(group.n_out), 0.3f)));
    };
    layer.bases.push_back(cuda::subspace::make_basis(context_, spans_.at(group.n_in).vectors, rank_,
                                                     group.n_in, DType::kBF16));
    layer.images.push_back(weights(rank_));
    layer.dense.push_back(weights(group.n_in));
    layer.gates.push_back(cuda::subspace::make_gate(context_, multiplier_,
                                                    {
                                                        .dense = layer.dense.back().get(),
                                                        .epsilon = 0.1,
                                                        .basis = layer.bases.back().get(),
                                                        .image = layer.images.back().get(),
                                                    }));
    if (layer.gates.back() == nullptr)
      throw Error("the device has no gate of rank " + std::to_string(rank_) + " for " + group.name);
  }
  LinearArgs args_of(size_t g) const {
    return {.weights = nullptr,
            .x = rows_.at(groups_[g].n_in).rows,
            .activation = groups_[g].activation,
            .accumulate = groups_[g].accumulate,
            .out = outs_[g].rows};
  }

  std::shared_ptr<cuda::Context> context_;
  cuda::linear::Multiplier multiplier_;
  std::vector<Group> groups_;
  int64_t rank_;
  std::map<int64_t, Span> spans_;         // by n_in
  std::map<int64_t, DeviceMatrix> rows_;  // the same
  std::vector<DeviceMatrix> outs_;        // by group
  std::vector<Layer> layers_;
};

// Groups from `first` on, `n` of them, one after another.
void run_groups(CudaCase& c, GatedLayers& layers, size_t first, size_t n, double read) {
  double whole = 0, part = 0;
  for (size_t g = first; g < first + n; ++g) {
    whole += layers.dense_bytes(g);
    part += layers.fast_bytes(g);
  }
  const auto time = [&](const std::function<void(int, size_t)>& product) {
    return time_recorded(*c.context(), c.rounds(kUsualRounds), layers.n_layers(), [&](int layer) {
      for (size_t g = first; g < first + n; ++g) product(layer, g);
    });
  };
  const Timing slow = time([&](int layer, size_t g) { layers.dense(layer, g); });
  const Timing fast = time([&](int layer, size_t g) { layers.gated(layer, g); });
  const double at_full = whole / read * 1e-9;  // ms
  const std::string name = n == 1 ? layers.groups()[first].name : "all of them";
  c.table().row(
      {name, fmt::format("{:.1f}", 1e3 * slow.median), fmt::format("{:.2f}", at_full / slow.median),
       fmt::format("{:.1f}", 1e3 * fast.median), fmt::format("{:.1f}", 1e-6 * part),
       fmt::format("{:.2f}", part / read * 1e-9 / fast.median), fmt::format("{:.2f}", fast.spread),
       fmt::format("{:.1f}x", slow.median / fast.median),
       fmt::format("{:.1f}x", at_full / fast.median)});
  const auto record = [&](const char* mode, const Timing& t, double bytes) {
    c.record(name, mode, t,
             {{"bytes_read", bytes},
              {"gb_per_s", bytes / t.median * 1e-6},
              {"baseline", "plain read"},
              {"baseline_gb_per_s", 1e3 * read},
              {"share_of_baseline", bytes / read * 1e-9 / t.median},
              {"speedup_vs_dense", slow.median / t.median},
              {"bytes_ratio", whole / bytes}});
  };
  record("dense", slow, whole);
  record("gsi, all fast", fast, part);
}

}  // namespace

void run_gsi(CudaCase& c) {
  const int64_t rank = c.keys().require_int("rank", 1, kMostWidth);
  std::vector<Group> groups;
  for (const ConfigReader& group : c.objects("groups")) groups.push_back(read_group(group, rank));
  const size_t n = groups.size();
  GatedLayers layers(c.context(), std::move(groups), rank, c.keys().require_int("layers", 1, 1000));
  const double read = read_bandwidth(c.context());
  c.table().say(fmt::format("one token, k = {}, reading alone {:.2f} TB/s; us", rank, read));
  c.table().columns({"group", "dense", "of read", "by gate", "MB read", "of read", "spread",
                     "speed-up", "against reading"});
  for (size_t g = 0; g < n; ++g) run_groups(c, layers, g, 1, read);
  if (n > 1) run_groups(c, layers, 0, n, read);
  const GatedLayers::Decided decided = layers.decided();
  c.table().say(fmt::format("\nfast: {} of {}, which miss up to {:.4f}", decided.n_fast,
                            decided.n_rows, decided.most));
}

}  // namespace sluice::impl::bench
