#include "eval/analyze/profile_attention.h"

#include <algorithm>
#include <cmath>

#include "core/threads.h"
#include "eval/text/host_rows.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

double norm_of(std::span<const double> x) {
  double squares = 0;
  for (const double element : x) squares += element * element;
  return std::sqrt(squares);
}

// ||K||_F of every key/value head; keys (n_tokens, n_kv_heads, head_dim).
std::vector<double> key_norms(const std::vector<float>& keys, const ModelSpec& spec) {
  std::vector<double> squares(static_cast<size_t>(spec.n_kv_heads));
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t head = i / static_cast<size_t>(spec.head_dim) % squares.size();
    squares[head] += double{keys[i]} * keys[i];
  }
  for (double& x : squares) x = std::sqrt(x);
  return squares;
}

// Between two tokens' outputs of a head.
struct Gap {
  double squares;      // ||Attn_h(t) - Attn_h(owner)||^2
  double own_squares;  // ||Attn_h(t)||^2
};

Gap gap_between(const AttentionOutputs& outputs, int64_t head, int64_t token, int64_t owner) {
  const auto row_of = [&](int64_t t) {
    return outputs.attended.data() + (t * outputs.n_heads + head) * outputs.head_dim;
  };
  const float *own = row_of(token), *other = row_of(owner);
  Gap gap{0, 0};
  for (int64_t i = 0; i < outputs.head_dim; ++i) {
    const double difference = double{own[i]} - other[i];
    gap.squares += difference * difference;
    gap.own_squares += double{own[i]} * own[i];
  }
  return gap;
}

// Errors against the bound: with the paper's tau and with the pair's own distance.
struct Bounds {
  RunningMean tau, distance, above_tau, above_distance;

  void add(double error, double tau_value, double pair_distance, double per_distance) {
    tau.add(tau_value * per_distance);
    distance.add(pair_distance * per_distance);
    above_tau.add(error > tau_value * per_distance ? 1 : 0);
    above_distance.add(error > pair_distance * per_distance ? 1 : 0);
  }
  void add_to(SetFigures& to) const {
    to.bound_tau.add(tau.mean());
    to.bound_distance.add(distance.mean());
    to.violations_tau.add(above_tau.mean());
    to.violations_distance.add(above_distance.mean());
  }
};

}  // namespace

double spectral_norm(std::span<const float> matrix, int64_t n_columns) {
  constexpr int kMaxIterations = 1000;
  constexpr double kTolerance = 1e-6;
  const auto n = static_cast<size_t>(n_columns);
  const size_t n_rows = matrix.size() / n;
  std::vector<double> x(n), y(n_rows);
  // Not constant: a matrix may be blind to constant vectors.
  for (size_t j = 0; j < n; ++j) x[j] = 1 + 0.5 * std::sin(static_cast<double>(j + 1));
  double norm = 0;
  for (int iteration = 0; iteration < kMaxIterations; ++iteration) {
    const double length = norm_of(x);
    if (length == 0) return 0;
    for (double& element : x) element /= length;
    for (size_t i = 0; i < n_rows; ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += double{matrix[i * n + j]} * x[j];
      y[i] = sum;
    }
    const double before = norm;
    norm = norm_of(y);
    if (norm - before <= kTolerance * norm) break;
    std::fill(x.begin(), x.end(), 0.0);
    for (size_t i = 0; i < n_rows; ++i)
      for (size_t j = 0; j < n; ++j) x[j] += double{matrix[i * n + j]} * y[i];
  }
  return norm;
}

ProjectionNorms projection_norms(const Checkpoint& checkpoint) {
  const ModelSpec& spec = checkpoint.spec();
  ProjectionNorms norms;
  for (const LayerNames& names : checkpoint.description.names.layers) {
    const MatrixSource qkv = matrix_source(checkpoint.weights(), names.qkv, spec.d_model);
    const auto of_heads = [&](int64_t first_row, int64_t n_heads) {
      std::vector<double> out(static_cast<size_t>(n_heads));
      parallel_for(n_heads, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> rows(static_cast<size_t>(spec.head_dim * spec.d_model));
        for (int64_t head = begin; head < end; ++head) {
          const int64_t first = first_row + head * spec.head_dim;
          qkv.read_rows(first, first + spec.head_dim, rows.data());
          out[static_cast<size_t>(head)] = spectral_norm(rows, spec.d_model);
        }
      });
      return out;
    };
    norms.query.push_back(of_heads(0, spec.n_heads));
    norms.value.push_back(of_heads(spec.query_width() + spec.kv_width(), spec.n_kv_heads));
    for (const MatrixPart& part : names.qkv)
      checkpoint.weights().release(checkpoint.weights().require(part.weight));
  }
  return norms;
}

AttentionOutputs attention_outputs(Backend& backend, const ModelSpec& spec,
                                   const ProjectionNorms& norms, const AttentionSeen& seen) {
  AttentionOutputs out{.n_tokens = seen.attended.rows(),
                       .n_heads = spec.n_heads,
                       .head_dim = spec.head_dim,
                       .attended = host_rows(backend, seen.attended),
                       .input_norms = {},
                       .bound_per_input = {}};
  const std::vector<float> input = host_rows(backend, seen.input);
  const auto width = static_cast<size_t>(spec.d_model);
  for (size_t row = 0; row < input.size(); row += width) {
    double squares = 0;
    for (size_t j = row; j < row + width; ++j) squares += double{input[j]} * input[j];
    check_finite(squares);
    out.input_norms.push_back(std::sqrt(squares));
  }
  const std::vector<double> keys = key_norms(host_rows(backend, seen.keys), spec);
  const auto layer = static_cast<size_t>(seen.layer);
  for (int64_t head = 0; head < spec.n_heads; ++head) {
    const auto kv_head = static_cast<size_t>(head / (spec.n_heads / spec.n_kv_heads));
    out.bound_per_input.push_back(norms.query[layer][static_cast<size_t>(head)] * keys[kv_head] *
                                      spec.attention_scale(seen.layer) +
                                  norms.value[layer][kv_head]);
  }
  return out;
}

void measure_attention(const AttentionOutputs& outputs, HeadRange heads, const TokenSet& set,
                       bool with_bound, SetFigures& to) {
  RunningMean error, relative;
  Bounds bounds;
  double largest = 0, all_gaps = 0, all_sizes = 0;
  int64_t n_outside = 0, n_covered = 0;
  for (int64_t t = 0; t < outputs.n_tokens; ++t) {
    const auto at = static_cast<size_t>(t);
    // An uncovered token with no representative before it has itself for owner.
    const bool outside = set.owner[at] != t;
    const bool covered = set.status[at] == TokenStatus::kRedundant;
    n_outside += outside ? 1 : 0;
    n_covered += covered ? 1 : 0;
    for (int64_t head = heads.first; head < heads.first + heads.count; ++head) {
      const Gap gap = gap_between(outputs, head, t, set.owner[at]);
      all_gaps += gap.squares;
      all_sizes += gap.own_squares;
      if (!outside) continue;
      const double size = std::sqrt(gap.squares);
      error.add(size);
      largest = std::max(largest, size);
      if (gap.own_squares > 0) relative.add(std::sqrt(gap.squares / gap.own_squares));
      if (with_bound && covered)
        bounds.add(size, set.tau, std::sqrt(std::max(0.0, 2 - 2 * double{set.cosine[at]})),
                   outputs.bound_per_input[static_cast<size_t>(head)] * outputs.input_norms[at]);
    }
  }
  if (all_sizes > 0) to.copy_error.add(std::sqrt(all_gaps / all_sizes));
  to.n_outside.add(static_cast<double>(n_outside));
  to.n_covered.add(static_cast<double>(n_covered));
  if (n_outside == 0) return;
  to.attention_error_mean.add(error.mean());
  to.attention_error_max.add(largest);
  if (relative.count() > 0) to.attention_error_relative.add(relative.mean());
  if (with_bound && n_covered > 0) bounds.add_to(to);
}

}  // namespace sluice::impl
