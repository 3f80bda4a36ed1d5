// One sequence through refined attention as data, and the error it may have.

#pragma once

#include <limits>
#include <optional>

#include "parity/keys_case.h"

namespace sluice::impl::test {

struct RefineCase {
  int64_t n_tokens, head_dim;
  int64_t n_heads = 2, n_kv_heads = 2;
  int64_t window = 64, segment = 128, early = 0, page = 16, sinks = 16, tile = 64;
  double delta = 0.03, tile_factor = 1;
  std::vector<RefineHead> heads = {};  // empty: clusters, opened at delta
  CacheKind members = CacheKind::kExact;
  bool causal = true;
  float size = 2;     // of queries: how sharp the softmax is
  float bias = 0;     // of keys in a few pairs of dimensions, which turn with the position
  int64_t pad = 0;    // between rows
  bool rare = false;  // a backend may refuse it
  uint32_t seed = 1;  // of its inputs

  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  RefineSpec spec(DType dtype) const {
    RefineSpec spec{.n_heads = n_heads,
                    .n_kv_heads = n_kv_heads,
                    .head_dim = head_dim,
                    .dtype = dtype,
                    .scale = scale(),
                    .causal = causal,
                    .capacity = n_tokens,
                    .window = window,
                    .segment = segment,
                    .early = early,
                    .page = page,
                    .sinks = sinks,
                    .tile = tile,
                    .tile_factor = tile_factor,
                    .members = members,
                    .heads = heads};
    if (heads.empty())
      spec.heads.assign(static_cast<size_t>(n_kv_heads), {HeadKind::kClusters, delta});
    return spec;
  }
  // Of this shape, as mode `keys` takes it.
  KeysCase keys_case() const {
    return {.n_tokens = n_tokens,
            .head_dim = head_dim,
            .n_heads = n_heads,
            .n_kv_heads = n_kv_heads,
            .causal = causal,
            .pad = pad};
  }
};

inline void PrintTo(const RefineCase& c, std::ostream* out) {
  *out << c.n_tokens << " tokens, head_dim " << c.head_dim << ", " << c.n_heads << "/"
       << c.n_kv_heads << " heads, window " << c.window << ", segment " << c.segment << ", early "
       << c.early << ", page " << c.page << ", tile " << c.tile << ", delta " << c.delta << ", "
       << (c.causal ? "causal" : "all keys");
}

// Tokens scatter around a few centres for keys and values alike, and queries look for centres, so
// that some clusters matter to a query and others do not.
struct RefineInputs {
  RefineInputs(const RefineCase& c, DType dtype) : RefineInputs(c, dtype, c.seed) {}
  RefineInputs(const RefineCase& c, DType dtype, uint32_t seed)
      : queries(static_cast<size_t>(c.n_tokens * c.n_heads * c.head_dim)),
        keys(static_cast<size_t>(c.n_tokens * c.n_kv_heads * c.head_dim)),
        values(random_values(static_cast<int64_t>(keys.size()), seed, dtype)) {
    constexpr int64_t kCentres = 11, kBiasPairs = 6;
    const int64_t hd = c.head_dim, group = c.n_heads / c.n_kv_heads;
    const auto centres = random_values(c.n_kv_heads * kCentres * hd, seed + 1);
    const auto key_noise = random_values(static_cast<int64_t>(keys.size()), seed + 2);
    const auto query_noise = random_values(static_cast<int64_t>(queries.size()), seed + 3);
    std::mt19937 random(seed + 4);
    const auto put = [&](std::vector<float>& to, const std::vector<float>& noise, int64_t row,
                         int64_t kv_head, float size) {
      const int64_t centre = kv_head * kCentres + static_cast<int64_t>(random() % kCentres);
      const float spread = 0.1f + 0.4f * static_cast<float>(centre % 3);
      for (int64_t d = 0; d < hd; ++d)
        to[static_cast<size_t>(row * hd + d)] =
            rounded(dtype, size * (centres[static_cast<size_t>(centre * hd + d)] +
                                   spread * noise[static_cast<size_t>(row * hd + d)]));
    };
    for (int64_t row = 0; row < c.n_tokens * c.n_kv_heads; ++row) {
      put(keys, key_noise, row, row % c.n_kv_heads, 1);
      if (c.bias == 0) continue;
      // As a rotary embedding turns the bias of a projection; queries have little to do with it.
      float* key = keys.data() + row * hd;
      for (int64_t pair = 0; pair < kBiasPairs; ++pair) {
        const auto angle =
            static_cast<float>(pair + 1) * 0.7f * static_cast<float>(row / c.n_kv_heads);
        key[pair] = rounded(dtype, c.bias * std::cos(angle));
        key[pair + hd / 2] = rounded(dtype, c.bias * std::sin(angle));
      }
    }
    for (int64_t row = 0; row < c.n_tokens * c.n_heads; ++row) {
      put(queries, query_noise, row, row % c.n_heads / group, c.size);
      if (c.bias == 0) continue;
      for (int64_t pair = 0; pair < kBiasPairs; ++pair)
        for (const int64_t d : {pair, pair + hd / 2}) {
          float& x = queries[static_cast<size_t>(row * hd + d)];
          x = rounded(dtype, x / c.bias);
        }
    }
  }
  KeysInputs keys_inputs(const RefineCase& c) const {
    KeysInputs in(c.keys_case(), DType::kF32);
    in.queries = queries;
    in.keys = keys;
    in.values = values;
    return in;
  }
  std::vector<float> queries, keys, values;
};

struct RefineAnswer {
  std::vector<float> out;       // (n_tokens, n_heads, head_dim)
  std::vector<int64_t> opened;  // (n_segments, n_heads)
};

inline std::vector<float> attend_pass(
    RefineAttention& attention, Backend& backend, DType dtype, const RefineCase& c,
    const RefineInputs& in, int64_t first, int64_t last,
    void (RefineAttention::*attend)(const AttendRefineArgs&) = &RefineAttention::attend) {
  const int64_t n = last - first, wide = c.n_heads * c.head_dim, narrow = c.n_kv_heads * c.head_dim;
  const DeviceTensor queries(backend, dtype, {n, c.n_heads, c.head_dim},
                             rows_of(in.queries, wide, first, last), c.pad);
  const DeviceTensor keys(backend, dtype, {n, c.n_kv_heads, c.head_dim},
                          rows_of(in.keys, narrow, first, last), c.pad);
  const DeviceTensor values(backend, dtype, {n, c.n_kv_heads, c.head_dim},
                            rows_of(in.values, narrow, first, last), c.pad);
  const DeviceTensor out = unwritten(backend, dtype, {n, c.n_heads, c.head_dim}, c.pad);
  (attention.*attend)({queries.view(), keys.view(), values.view(), out.view()});
  return out.values();
}

// `cuts`: where a pass ends and the next begins, ascending. The tensors have dtype `tensors`, the
// cache is one of `dtype`. Nothing where the backend refuses a rare case.
inline std::optional<RefineAnswer> attend_refine(Backend& backend, DType dtype, DType tensors,
                                                 const RefineCase& c, const RefineInputs& in,
                                                 std::vector<int64_t> cuts = {}) {
  std::unique_ptr<RefineAttention> attention;
  try {
    attention = backend.make_refine_attention(c.spec(dtype));
  } catch (const Error&) {
    if (c.rare) return {};
    throw;
  }
  RefineAnswer answer;
  cuts.push_back(c.n_tokens);
  int64_t first = 0;
  for (const int64_t last : cuts) {
    const auto part = attend_pass(*attention, backend, tensors, c, in, first, last);
    answer.out.insert(answer.out.end(), part.begin(), part.end());
    first = last;
  }
  answer.opened = attention->opened();
  return answer;
}

// The reference's answer: f32 tensors, means rounded to dtype.
inline RefineAnswer expected_refine(Backend& reference, DType dtype, const RefineCase& c,
                                    const RefineInputs& in, std::vector<int64_t> cuts = {}) {
  return *attend_refine(reference, dtype, DType::kF32, c, in, std::move(cuts));
}

// Round-off moves an estimate by its score's error, which is far below this, relatively. So where
// no estimate is this near to delta, all backends decide the same.
constexpr double kClearance = 1e-4;

// The case with a delta, the same or little larger, that no estimate is near to: the reference
// opens the same a clearance below and above it, in passes that end at `cuts`.
inline RefineCase with_clear_delta(Backend& reference, DType dtype, RefineCase c,
                                   const RefineInputs& in, const std::vector<int64_t>& cuts = {}) {
  const auto opened_at = [&](double factor) {
    RefineCase moved = c;
    moved.delta *= factor;
    for (RefineHead& head : moved.heads) head.delta *= factor;
    return expected_refine(reference, dtype, moved, in, cuts).opened;
  };
  for (int step = 0; step < 20; ++step) {
    if (opened_at(1 - kClearance) == opened_at(1 + kClearance)) return c;
    c.delta *= 1.003;
    for (RefineHead& head : c.heads) head.delta *= 1.003;
  }
  ADD_FAILURE() << "no delta is clear of all estimates";
  return c;
}

// Bound of every element where both sides open the same clusters: attention_error() on what a
// query sees. The reference rounds means as the cache does, and a mean that lies between two
// numbers of dtype may be rounded to either: one dimension of a mean key moves its score by
// `flip`, and one of a mean value the answer by a unit.
inline std::vector<double> refine_bounds(DType dtype, const RefineCase& c, const RefineInputs& in,
                                         const std::vector<float>& expected) {
  const double narrow = dtype == DType::kBF16 ? kBF16Unit : kF32Unit;
  const auto largest = [](const std::vector<float>& x) {
    return double{*std::max_element(x.begin(), x.end(),
                                    [](float a, float b) { return std::abs(a) < std::abs(b); })};
  };
  const double flip = 2 * narrow * std::abs(largest(in.queries) * largest(in.keys)) * c.scale();
  const double error =
      attention_error(dtype, {.head_dim = c.head_dim,
                              .n_keys = c.n_tokens,
                              .score = largest_row_norm(in.queries, c.head_dim) *
                                       largest_row_norm(in.keys, c.head_dim) * double{c.scale()},
                              .means = false}) +
      2 * flip + 2 * narrow;
  // sum p |v| is at most the largest |v|, which is 1.
  std::vector<double> bounds;
  for (const float x : expected) bounds.push_back(stored_error(dtype, x, error));
  return bounds;
}

// Float64 over sinks, near keys and, where `means`, the mean of every segment before the border.
// Every segment is one cluster.
inline std::vector<float> attend_means(const RefineCase& c, const RefineInputs& in, DType dtype,
                                       bool means) {
  std::vector<float> out;
  const int64_t hd = c.head_dim, width = c.n_kv_heads * hd, group = c.n_heads / c.n_kv_heads;
  const auto mean = [&](const std::vector<float>& rows, int64_t begin, int64_t column) {
    double sum = 0;
    for (int64_t i = begin; i < begin + c.segment; ++i)
      sum += double{rows[static_cast<size_t>(i * width + column)]};
    return double{rounded(dtype, static_cast<float>(sum / static_cast<double>(c.segment)))};
  };
  for (int64_t t = 0; t < c.n_tokens; ++t)
    for (int64_t head = 0; head < c.n_heads; ++head) {
      const auto query = in.queries.begin() + (t * c.n_heads + head) * hd;
      const int64_t step = c.tile == 1 && c.early > 0 ? c.early : c.segment;
      const int64_t border = refine_border(t, c.window, c.segment, step);
      std::vector<double> sum(static_cast<size_t>(hd));
      double total = 0;
      const auto see = [&](double count, const auto& key, const auto& value) {
        double score = 0;
        for (int64_t d = 0; d < hd; ++d) score += double{query[d]} * key(d);
        const double weight = count * std::exp(score * double{c.scale()});
        total += weight;
        for (int64_t d = 0; d < hd; ++d) sum[static_cast<size_t>(d)] += weight * value(d);
      };
      const int64_t first = head / group * hd;
      for (int64_t begin = 0; means && begin < border; begin += c.segment)
        see(
            static_cast<double>(c.segment),
            [&](int64_t d) { return mean(in.keys, begin, first + d); },
            [&](int64_t d) { return mean(in.values, begin, first + d); });
      for (int64_t i = 0; i <= t; ++i) {
        if (i >= c.sinks && i < border) continue;
        const auto at = [&](int64_t d) { return static_cast<size_t>(i * width + first + d); };
        see(
            1, [&](int64_t d) { return double{in.keys[at(d)]}; },
            [&](int64_t d) { return double{in.values[at(d)]}; });
      }
      for (const double x : sum) out.push_back(static_cast<float>(x / total));
    }
  return out;
}

}  // namespace sluice::impl::test
