#include "eval/analyze/profile_matrices.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/threads.h"
#include "eval/text/host_rows.h"

namespace sluice::impl {
namespace {

// Sums over rows of one matrix against another.
struct Difference {
  double absolute = 0, squares = 0, other_squares = 0;

  void add(const std::vector<double>& row, const std::vector<double>& other) {
    for (size_t i = 0; i < row.size(); ++i) {
      const double difference = row[i] - other[i];
      absolute += std::abs(difference);
      squares += difference * difference;
      other_squares += other[i] * other[i];
    }
  }
  void add(const Difference& more) {
    absolute += more.absolute;
    squares += more.squares;
    other_squares += more.other_squares;
  }
  void put(double n_rows, RunningMean& variation, RunningMean& frobenius) const {
    variation.add(absolute / 2 / n_rows);
    frobenius.add(std::sqrt(squares / other_squares));
  }
};

std::vector<int64_t> compared_rows(int64_t n_tokens) {
  const int64_t n = std::min(n_tokens, kMatrixRows);
  std::vector<int64_t> rows;
  for (int64_t i = 1; i <= n; ++i) rows.push_back(i * n_tokens / n - 1);
  return rows;
}

}  // namespace

AttentionScores attention_scores(Backend& backend, const ModelSpec& spec,
                                 const AttentionSeen& seen) {
  return {.n_tokens = seen.queries.rows(),
          .n_heads = spec.n_heads,
          .n_kv_heads = spec.n_kv_heads,
          .head_dim = spec.head_dim,
          .causal = spec.causal,
          .window = spec.window(seen.layer),
          .scale = spec.attention_scale(seen.layer),
          .cap = spec.attention_cap,
          .queries = host_rows(backend, seen.queries),
          .keys = host_rows(backend, seen.keys)};
}

std::vector<double> matrix_row(const AttentionScores& scores, int64_t head, int64_t t,
                               const TokenSet* set) {
  const int64_t query = set == nullptr ? t : set->owner[static_cast<size_t>(t)];
  const int64_t kv_head = head / (scores.n_heads / scores.n_kv_heads);
  const float* q = scores.queries.data() + (query * scores.n_heads + head) * scores.head_dim;
  std::vector<double> row(static_cast<size_t>(scores.n_tokens));
  const int64_t end = scores.causal ? query + 1 : scores.n_tokens;
  const int64_t begin = scores.window > 0 ? std::max<int64_t>(0, end - scores.window) : 0;
  const auto sees = [&](int64_t s) {
    return set == nullptr || set->owner[static_cast<size_t>(s)] == s;
  };
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t s = begin; s < end; ++s) {
    if (!sees(s)) continue;
    const float* k = scores.keys.data() + (s * scores.n_kv_heads + kv_head) * scores.head_dim;
    double sum = 0;
    for (int64_t i = 0; i < scores.head_dim; ++i) sum += double{q[i]} * k[i];
    sum *= double{scores.scale};
    if (scores.cap > 0) sum = scores.cap * std::tanh(sum / scores.cap);
    row[static_cast<size_t>(s)] = sum;
    largest = std::max(largest, sum);
  }
  double total = 0;
  for (int64_t s = begin; s < end; ++s) {
    if (!sees(s)) continue;
    double& weight = row[static_cast<size_t>(s)];
    weight = std::exp(weight - largest);
    total += weight;
  }
  // An owner is a member and sees itself, so there is one weight at least.
  for (double& weight : row) weight /= total;
  return row;
}

void measure_matrices(const AttentionScores& scores, HeadRange heads,
                      const std::vector<TokenSet>& sets, std::vector<SetFigures>& to) {
  const std::vector<int64_t> rows = compared_rows(scores.n_tokens);
  const auto n_heads = static_cast<size_t>(heads.count);
  using Differences = std::vector<Difference>;  // (sets)
  std::vector<Differences> independent(n_heads, Differences(sets.size()));
  std::vector<Differences> dense = independent;
  parallel_for(heads.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      for (const int64_t t : rows) {
        const auto row = [&](const TokenSet* set) {
          return matrix_row(scores, heads.first + h, t, set);
        };
        const std::vector<double> exact = row(nullptr), base = row(&sets[kIndependentSet]);
        for (size_t kind = 0; kind < sets.size(); ++kind) {
          const std::vector<double> own = kind == kIndependentSet ? base : row(&sets[kind]);
          independent[static_cast<size_t>(h)][kind].add(own, base);
          dense[static_cast<size_t>(h)][kind].add(own, exact);
        }
      }
  });
  // Heads are summed up in their order, so that threads do not change a bit.
  const auto n_rows = static_cast<double>(rows.size() * n_heads);
  for (size_t kind = 0; kind < sets.size(); ++kind) {
    Difference from_independent, from_dense;
    for (size_t h = 0; h < n_heads; ++h) {
      from_independent.add(independent[h][kind]);
      from_dense.add(dense[h][kind]);
    }
    SetFigures& figures = to[kind];
    from_independent.put(n_rows, figures.matrix_tv_independent,
                         figures.matrix_frobenius_independent);
    from_dense.put(n_rows, figures.matrix_tv_dense, figures.matrix_frobenius_dense);
  }
}

}  // namespace sluice::impl
