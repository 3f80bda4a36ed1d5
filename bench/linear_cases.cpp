// Every product reads weights as a model of many layers does, from memory: there are as many
// copies of a layer as make kColdBytes of dense weights, a sample passes over all of them once, and
// between two samples of one kind lies a whole sample of dense products.

#include "linear_cases.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>

#include "backend/backend.h"
#include "eval/timing.h"
#include "layer/linear_gate.h"
#include "table.h"

namespace sluice::impl::bench {
namespace {

constexpr int64_t kColdBytes = int64_t{256} << 20;  // well above any last-level cache here
constexpr double kEpsilon = 0.1;                    // of the gate, and of graded rows

struct LinearCase {
  int64_t n_in, n_out, rank;
  DType dtype;
  std::vector<double> kept;
};

std::vector<float> random_numbers(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f;
  return values;
}

MatrixSource matrix(int64_t n_out, int64_t n_in, const std::vector<float>& values) {
  MatrixSource source{.n_out = n_out, .n_in = n_in, .read_rows = {}, .bias = {}};
  source.read_rows = [n_in, &values](int64_t begin, int64_t end, float* out) {
    std::copy(values.begin() + begin * n_in, values.begin() + end * n_in, out);
  };
  return source;
}

// Orthonormal rows without a decomposition: the identity's, after a few random reflections.
std::vector<float> orthonormal_rows(int64_t rank, int64_t n, uint32_t seed) {
  std::vector<double> rows(static_cast<size_t>(rank * n));
  for (int64_t j = 0; j < rank; ++j) rows[static_cast<size_t>(j * n + j)] = 1;
  for (uint32_t reflection = 0; reflection < 3; ++reflection) {
    const std::vector<float> axis = random_numbers(n, seed + reflection);
    double norm = 0;
    for (const float x : axis) norm += double{x} * x;
    for (int64_t j = 0; j < rank; ++j) {
      double* row = rows.data() + j * n;
      double dot = 0;
      for (int64_t i = 0; i < n; ++i) dot += row[i] * axis[static_cast<size_t>(i)];
      for (int64_t i = 0; i < n; ++i) row[i] -= 2 * dot / norm * axis[static_cast<size_t>(i)];
    }
  }
  return {rows.begin(), rows.end()};
}

class ColdLayers {
 public:
  explicit ColdLayers(const LinearCase& c) : c_(c), backend_(make_cpu_backend(c.dtype)) {
    const int64_t dense_bytes = c.n_in * c.n_out * element_bytes(c.dtype);
    const int64_t n = (kColdBytes + dense_bytes - 1) / dense_bytes;
    const std::vector<float> weights = random_numbers(c.n_out * c.n_in, 1);
    const std::vector<float> vectors = orthonormal_rows(c.rank, c.n_in, 2);
    const MatrixSource source = matrix(c.n_out, c.n_in, weights);
    for (int64_t i = 0; i < n; ++i) {
      LinearGroup group(backend_->pack_linear(source));
      group.add_subspace(*backend_, source, backend_->make_basis(vectors, c.rank, c.n_in));
      group.add_columns(*backend_, source);
      groups_.push_back(std::move(group));
    }
    out_ = backend_->allocate(c.dtype, {1, c.n_out});
    std::vector<float> inside(static_cast<size_t>(c.n_in));
    for (int64_t j = 0; j < c.rank; ++j)
      for (int64_t k = 0; k < c.n_in; ++k)
        inside[static_cast<size_t>(k)] += vectors[static_cast<size_t>(j * c.n_in + k)];
    const std::vector<float> outside = random_numbers(c.n_in, 4);
    inside_ = row(inside);
    outside_ = row(outside);
    // Half of epsilon from the subspace, like a row the gate lets pass.
    const auto norm = [](const std::vector<float>& x) {
      return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0f));
    };
    const auto share = static_cast<float>(0.5 * kEpsilon) * norm(inside) / norm(outside);
    for (size_t k = 0; k < inside.size(); ++k) inside[k] += share * outside[k];
    near_ = row(inside);
  }

  int64_t copies() const { return static_cast<int64_t>(groups_.size()); }
  const LinearGroup& first() const { return groups_[0]; }
  const Tensor& near() const { return near_.view(); }
  const Tensor& inside() const { return inside_.view(); }
  const Tensor& outside() const { return outside_.view(); }

  void dense() {
    for (const LinearGroup& group : groups_)
      backend_->linear({.weights = &group.dense(), .x = outside(), .out = out_.view()});
  }
  // One token through a gate for each copy.
  using Gates = std::vector<LinearGate>;
  Gates make_gates(const GroupPlan& plan) {
    const auto scratch = std::make_shared<LinearScratch>();
    Gates gates;
    for (const LinearGroup& group : groups_) gates.emplace_back(*backend_, group, plan, 1, scratch);
    return gates;
  }
  void gated(Gates& gates, const ConstTensor& x) {
    for (LinearGate& gate : gates) gate.run({.weights = nullptr, .x = x, .out = out_.view()}, 0);
  }
  // As graded, whatever share is worth it.
  void columns(const std::vector<Buffer>& rows, double epsilon) {
    const Buffer graded = backend_->allocate(c_.dtype, {1, c_.n_in});
    for (size_t i = 0; i < groups_.size(); ++i) {
      int32_t kept = 0;
      backend_->grade({.x = rows[i % rows.size()].view(),
                       .epsilon = epsilon,
                       .graded = graded.view(),
                       .kept = {&kept, 1}});
      backend_->linear_columns(
          {.weights = groups_[i].columns(), .x = graded.view(), .out = out_.view()});
    }
  }
  // Rows with `share` of their elements of size 1, others of size `rest`.
  std::vector<Buffer> sparse_rows(double share, float rest) const {
    const auto n = static_cast<size_t>(c_.n_in);
    const auto n_kept = static_cast<size_t>(std::llround(share * static_cast<double>(n)));
    std::vector<Buffer> rows;
    for (uint32_t i = 0; i < 16; ++i) {
      std::mt19937 random(i);
      std::vector<float> values(n, rest);
      std::fill_n(values.begin(), n_kept, 1.0f);
      std::shuffle(values.begin(), values.end(), random);
      rows.push_back(row(values));
    }
    return rows;
  }

 private:
  Buffer row(const std::vector<float>& values) const {
    Buffer x = backend_->allocate(c_.dtype, {1, c_.n_in});
    const Tensor from(const_cast<float*>(values.data()), DType::kF32, {1, c_.n_in});
    backend_->convert(from, x.view());
    return x;
  }

  LinearCase c_;
  std::unique_ptr<Backend> backend_;
  std::vector<LinearGroup> groups_;
  Buffer out_, near_, inside_, outside_;
};

struct Piece {
  std::string mode;
  double bytes;  // read by one product
  std::function<void()> work;
};

std::vector<Piece> pieces_of(const LinearCase& c, ColdLayers& layers) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const Subspace& subspace = *layers.first().subspace(c.rank);
  const double dense = number(layers.first().dense().bytes());
  const double basis = number(subspace.basis->bytes()), image = number(subspace.image->bytes());
  const auto gated = [&](const Tensor& x, int64_t n_before) {
    const auto gates = std::make_shared<ColdLayers::Gates>(
        layers.make_gates({.kind = LinearKind::kGsi, .rank = c.rank, .epsilon = kEpsilon}));
    for (int64_t i = 0; i < n_before; ++i) layers.gated(*gates, x);
    return [&layers, gates, x] { layers.gated(*gates, x); };
  };
  // A row within the subspace has a residual of the size of round-off, which takes a second pass
  // over V. A gate that saw BypassLimits().slow_tokens slow tokens asks no more.
  std::vector<Piece> pieces = {
      {"dense", dense, [&] { layers.dense(); }},
      {"gsi, all fast", basis + image, gated(layers.near(), 0)},
      {"gsi, all fast, no residual", basis + image, gated(layers.inside(), 0)},
      {"gsi, all slow", basis + dense, gated(layers.outside(), 0)},
      {"gsi, bypassed", dense, gated(layers.outside(), BypassLimits().slow_tokens)}};
  for (const double share : c.kept) {
    const double bytes =
        std::round(share * number(c.n_in)) * number(layers.first().columns()->column_bytes());
    // All the small elements together stay within the budget, one large one is beyond it.
    const auto rest = static_cast<float>(0.9 * kEpsilon * std::sqrt(share / (1 - share)));
    const auto sparse = std::make_shared<std::vector<Buffer>>(layers.sparse_rows(share, 0.0f));
    const auto full = std::make_shared<std::vector<Buffer>>(layers.sparse_rows(share, rest));
    pieces.push_back({fmt::format("lossless, {:.0f}% kept", 100 * share), bytes,
                      [&layers, sparse] { layers.columns(*sparse, 0); }});
    pieces.push_back({fmt::format("graded, {:.0f}% kept", 100 * share), bytes,
                      [&layers, full] { layers.columns(*full, kEpsilon); }});
  }
  return pieces;
}

// Times of one product by mode: samples in ms. Each round takes one of every mode.
struct Timed {
  std::vector<std::string> modes;
  std::vector<double> bytes;
  std::vector<std::vector<double>> samples;
};

Timed time_case(const LinearCase& c, int repeat) {
  ColdLayers layers(c);
  SLUICE_CHECK(repeat + 1 < BypassLimits().slow_tokens);  // else the slow gates would pass by
  const std::vector<Piece> pieces = pieces_of(c, layers);
  std::vector<std::function<void()>> work;
  Timed timed;
  for (const Piece& piece : pieces) {
    work.push_back(piece.work);
    timed.modes.push_back(piece.mode);
    timed.bytes.push_back(piece.bytes);
  }
  timed.samples = time_interleaved(repeat, work);
  for (auto& samples : timed.samples)
    for (double& ms : samples) ms /= static_cast<double>(layers.copies());
  return timed;
}

void add(const Timed& one, Timed& sum) {
  if (sum.modes.empty()) {
    sum = one;
    return;
  }
  for (size_t i = 0; i < one.modes.size(); ++i) {
    sum.bytes[i] += one.bytes[i];
    for (size_t k = 0; k < one.samples[i].size(); ++k) sum.samples[i][k] += one.samples[i][k];
  }
}

struct Output {
  Table table;
  nlohmann::json& results;
};
// About: what tells the case apart, in the table and in the results.
void print_case(const std::string& name, const std::string& shape, const Timed& timed,
                nlohmann::json about, Output& output) {
  for (size_t i = 0; i < timed.modes.size(); ++i) {
    const Ratio speedup = ratio_of(timed.samples[0], timed.samples[i]);
    const double ideal = timed.bytes[0] / timed.bytes[i], ms = median(timed.samples[i]);
    output.table.row(
        {name, shape, timed.modes[i], fmt::format("{:.1f}", 1e3 * ms),
         fmt::format("{:.2f}", timed.bytes[i] * 1e-6),
         fmt::format("{:.1f}", timed.bytes[i] / ms * 1e-6),
         fmt::format("{:.2f}x ({:.2f}-{:.2f})", speedup.middle, speedup.low, speedup.high),
         fmt::format("{:.2f}x", ideal), fmt::format("{:.2f}", speedup.middle / ideal)});
    about.update({{"mode", timed.modes[i]},
                  {"samples_ms", timed.samples[i]},
                  {"median_ms", ms},
                  {"bytes_read", timed.bytes[i]},
                  {"gb_per_s", timed.bytes[i] / ms * 1e-6},
                  {"speedup_vs_dense", speedup.middle},
                  {"speedup_low", speedup.low},
                  {"speedup_high", speedup.high},
                  {"bytes_ratio", ideal},
                  {"share_of_ideal", speedup.middle / ideal}});
    output.results["cases"].push_back(about);
  }
}

}  // namespace

void run_linear_cases(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  const int64_t divisor = description.at("rank_divisor");
  Output output{Table(description.at("name"), results), results};
  output.table.say(
      fmt::format("One row; weights from memory; rank = inputs / {}; median of {} samples (range)",
                  divisor, repeat));
  output.table.columns({"layer", "shape", "mode", "us", "MB read", "GB/s", "against dense",
                        "ratio of bytes", "share of it"});
  for (const std::string dtype : description.at("dtypes"))
    for (const auto& model : description.at("models")) {
      const std::string model_name = fmt::format("{} {}", model.at("name"), dtype);
      Timed block;
      for (const auto& group : model.at("groups")) {
        const LinearCase c = {.n_in = group.at("n_in"),
                              .n_out = group.at("n_out"),
                              .rank = group.at("n_in").get<int64_t>() / divisor,
                              .dtype = dtype == "bf16" ? DType::kBF16 : DType::kF32,
                              .kept = description.at("kept").get<std::vector<double>>()};
        const Timed timed = time_case(c, repeat);
        add(timed, block);
        const std::string name = fmt::format("{} {}", model_name, group.at("name"));
        print_case(name, fmt::format("{} -> {}", c.n_in, c.n_out), timed,
                   {{"name", fmt::format("{} {}x{}", name, c.n_in, c.n_out)},
                    {"dtype", dtype},
                    {"n_in", c.n_in},
                    {"n_out", c.n_out},
                    {"rank", c.rank}},
                   output);
      }
      print_case(model_name + " block", "all of them", block,
                 {{"name", model_name + " block"}, {"dtype", dtype}}, output);
    }
}

}  // namespace sluice::impl::bench
