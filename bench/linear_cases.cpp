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

namespace sluice::bench {
namespace {

constexpr int64_t kColdBytes = int64_t{256} << 20;  // well above any last-level cache here
constexpr double kEpsilon = 0.1;                    // of the gate, and of graded rows

struct LinearCase {
  std::string name;
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

// Orthonormal rows without a decomposition: the identity's, turned by a few random reflections.
std::vector<float> orthonormal_rows(int64_t rank, int64_t n, uint32_t seed) {
  std::vector<double> rows(static_cast<size_t>(rank * n));
  for (int64_t j = 0; j < rank; ++j) rows[static_cast<size_t>(j * n + j)] = 1;
  for (uint32_t turn = 0; turn < 3; ++turn) {
    const std::vector<float> axis = random_numbers(n, seed + turn);
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
    const std::vector<float> image = random_numbers(c.n_out * c.rank, 3);
    for (int64_t i = 0; i < n; ++i)
      layers_.push_back(
          {backend_->pack_linear(source), backend_->make_basis(vectors, c.rank, c.n_in),
           backend_->pack_linear(matrix(c.n_out, c.rank, image)), backend_->pack_columns(source)});
    coordinates_ = backend_->allocate(c.dtype, {1, c.rank});
    graded_ = backend_->allocate(c.dtype, {1, c.n_in});
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

  int64_t copies() const { return static_cast<int64_t>(layers_.size()); }
  int64_t dense_bytes() const { return layers_[0].dense->bytes(); }
  int64_t basis_bytes() const { return layers_[0].basis->bytes(); }
  int64_t image_bytes() const { return layers_[0].image->bytes(); }
  int64_t column_bytes() const { return layers_[0].columns->column_bytes(); }

  void dense() {
    for (const Layer& layer : layers_) multiply(*layer.dense, outside_.view());
  }
  // Gate and all: fast where the residual allows. `kNear` has the residual of a row that the gate
  // lets pass; that of `kInside` is of the size of round-off, which takes a second pass over V.
  enum class Row { kNear, kInside, kOutside };
  void gated(Row which) {
    const Tensor& x = (which == Row::kNear     ? near_
                       : which == Row::kInside ? inside_
                                               : outside_)
                          .view();
    int64_t n_fast = 0;
    for (const Layer& layer : layers_) {
      float residual = 0;
      backend_->project({.basis = layer.basis.get(),
                         .x = x,
                         .coordinates = coordinates_.view(),
                         .residuals = {&residual, 1}});
      const bool fast = residual <= kEpsilon;
      n_fast += fast ? 1 : 0;
      multiply(fast ? *layer.image : *layer.dense, fast ? coordinates_.view() : x);
    }
    SLUICE_CHECK(n_fast == (which == Row::kOutside ? 0 : copies()));
  }
  // Rows made by sparse_rows(); with an epsilon of 0 the zeros are there already.
  void columns(const std::vector<Buffer>& rows, bool graded) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      Tensor x = rows[i % rows.size()].view();
      if (graded) {
        int32_t kept = 0;
        backend_->grade(
            {.x = x, .epsilon = kEpsilon, .graded = graded_.view(), .kept = {&kept, 1}});
        x = graded_.view();
      }
      backend_->linear_columns({.weights = layers_[i].columns.get(), .x = x, .out = out_.view()});
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
  struct Layer {
    std::unique_ptr<LinearWeights> dense;
    std::unique_ptr<SubspaceBasis> basis;
    std::unique_ptr<LinearWeights> image;
    std::unique_ptr<ColumnWeights> columns;
  };

  Buffer row(const std::vector<float>& values) const {
    Buffer x = backend_->allocate(c_.dtype, {1, c_.n_in});
    const Tensor from(const_cast<float*>(values.data()), DType::kF32, {1, c_.n_in});
    backend_->convert(from, x.view());
    return x;
  }
  void multiply(const LinearWeights& weights, const ConstTensor& x) {
    backend_->linear({.weights = &weights, .x = x, .out = out_.view()});
  }

  LinearCase c_;
  std::unique_ptr<Backend> backend_;
  std::vector<Layer> layers_;
  Buffer coordinates_, graded_, out_, near_, inside_, outside_;
};

struct Piece {
  std::string mode;
  double bytes;  // read by one product
  std::function<void()> work;
};

std::vector<Piece> pieces_of(const LinearCase& c, ColdLayers& layers) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  std::vector<Piece> pieces = {
      {"dense", number(layers.dense_bytes()), [&] { layers.dense(); }},
      {"gsi, all fast", number(layers.basis_bytes() + layers.image_bytes()),
       [&] { layers.gated(ColdLayers::Row::kNear); }},
      {"gsi, all fast, no residual", number(layers.basis_bytes() + layers.image_bytes()),
       [&] { layers.gated(ColdLayers::Row::kInside); }},
      {"gsi, all slow", number(layers.basis_bytes() + layers.dense_bytes()),
       [&] { layers.gated(ColdLayers::Row::kOutside); }}};
  for (const double share : c.kept) {
    const double bytes = std::round(share * number(c.n_in)) * number(layers.column_bytes());
    // All the small elements together stay within the budget, one large one is beyond it.
    const auto rest = static_cast<float>(0.9 * kEpsilon * std::sqrt(share / (1 - share)));
    const auto sparse = std::make_shared<std::vector<Buffer>>(layers.sparse_rows(share, 0.0f));
    const auto full = std::make_shared<std::vector<Buffer>>(layers.sparse_rows(share, rest));
    pieces.push_back({fmt::format("lossless, {:.0f}% kept", 100 * share), bytes,
                      [&layers, sparse] { layers.columns(*sparse, false); }});
    pieces.push_back({fmt::format("graded, {:.0f}% kept", 100 * share), bytes,
                      [&layers, full] { layers.columns(*full, true); }});
  }
  return pieces;
}

void run_case(const LinearCase& c, int repeat, nlohmann::json& results) {
  ColdLayers layers(c);
  const std::vector<Piece> pieces = pieces_of(c, layers);
  std::vector<std::function<void()>> work;
  for (const Piece& piece : pieces) work.push_back(piece.work);
  auto samples = time_in_turn(repeat, work);
  for (auto& piece : samples)
    for (double& ms : piece) ms /= static_cast<double>(layers.copies());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Ratio speedup = ratio_of(samples[0], samples[i]);
    const double ideal = pieces[0].bytes / pieces[i].bytes, ms = median(samples[i]);
    fmt::print(
        "| {} {} | {} -> {} | {} | {:.1f} | {:.2f} | {:.1f} | {:.2f}x ({:.2f}-{:.2f}) | {:.2f}x | "
        "{:.2f} |\n",
        c.name, dtype_name(c.dtype), c.n_in, c.n_out, pieces[i].mode, 1e3 * ms,
        pieces[i].bytes * 1e-6, pieces[i].bytes / ms * 1e-6, speedup.middle, speedup.low,
        speedup.high, ideal, speedup.middle / ideal);
    results["cases"].push_back({{"name", fmt::format("{} {}x{}", c.name, c.n_in, c.n_out)},
                                {"dtype", dtype_name(c.dtype)},
                                {"n_in", c.n_in},
                                {"n_out", c.n_out},
                                {"rank", c.rank},
                                {"mode", pieces[i].mode},
                                {"samples_ms", samples[i]},
                                {"median_ms", ms},
                                {"bytes_read", pieces[i].bytes},
                                {"gb_per_s", pieces[i].bytes / ms * 1e-6},
                                {"speedup_vs_dense", speedup.middle},
                                {"speedup_low", speedup.low},
                                {"speedup_high", speedup.high},
                                {"bytes_ratio", ideal},
                                {"share_of_ideal", speedup.middle / ideal}});
  }
  std::fflush(stdout);
}

}  // namespace

void run_linear_cases(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  fmt::print(
      "\nOne row; weights from memory; rank = inputs / {}; median of {} samples (range)\n\n"
      "| layer | shape | mode | us | MB read | GB/s | against dense | ratio of bytes | share of it "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
      description.at("rank_divisor").get<int64_t>(), repeat);
  for (const std::string dtype : description.at("dtypes"))
    for (const auto& group : description.at("groups")) {
      const int64_t n_in = group.at("n_in");
      run_case({.name = group.at("name"),
                .n_in = n_in,
                .n_out = group.at("n_out"),
                .rank = n_in / description.at("rank_divisor").get<int64_t>(),
                .dtype = dtype == "bf16" ? DType::kBF16 : DType::kF32,
                .kept = description.at("kept").get<std::vector<double>>()},
               repeat, results);
    }
}

}  // namespace sluice::bench
