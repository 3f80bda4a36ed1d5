// Baselines against plain loops: which keys they read, how many, and their limits.
// docs/baselines.md.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>

#include "backend/baseline.h"
#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

using enum BaselineKind;
constexpr BaselineKind kAll[] = {kWindow, kQuest, kPooled, kOracle};

// One sequence; rows of heads side by side.
struct Text {
  Text(int64_t n, DType type, int64_t head_dim = 16)
      : n_tokens(n),
        dim(head_dim),
        dtype(type),
        // Sharp enough that pages and blocks differ in mass.
        queries(random_values(n * kHeads * dim, 1, type, 6)),
        keys(random_values(n * kKvHeads * dim, 2, type)),
        values(random_values(n * kKvHeads * dim, 3, type)) {}

  static constexpr int64_t kHeads = 4, kKvHeads = 2;
  float* query(int64_t t, int64_t head) { return queries.data() + (t * kHeads + head) * dim; }
  float* key(int64_t t, int64_t head) {
    return keys.data() + (t * kKvHeads + head / (kHeads / kKvHeads)) * dim;
  }
  float* value(int64_t t, int64_t head) { return values.data() + (key(t, head) - keys.data()); }
  double score(int64_t t, int64_t head, int64_t j) {
    return scale * std::inner_product(query(t, head), query(t, head) + dim, key(j, head), 0.0);
  }

  int64_t n_tokens, dim;
  float scale = 1 / std::sqrt(static_cast<float>(dim));
  DType dtype;
  std::vector<float> queries;       // (n_tokens, kHeads, dim)
  std::vector<float> keys, values;  // (n_tokens, kKvHeads, dim)
};

struct Answer {
  std::vector<float> out;  // (n_tokens, kHeads, kDim)
  int64_t keys_read;
};

// pieces: tokens of each pass; the last takes the rest.
Answer attend(Backend& backend, BaselineKind kind, double keep, const Text& text,
              std::vector<int64_t> pieces = {}) {
  const auto attention = backend.make_baseline_attention({.n_heads = Text::kHeads,
                                                          .n_kv_heads = Text::kKvHeads,
                                                          .head_dim = text.dim,
                                                          .dtype = text.dtype,
                                                          .scale = text.scale,
                                                          .capacity = text.n_tokens,
                                                          .kind = kind,
                                                          .keep = keep,
                                                          .context = text.n_tokens});
  const Shape many = {text.n_tokens, Text::kHeads, text.dim};
  const Shape few = {text.n_tokens, Text::kKvHeads, text.dim};
  const DeviceTensor queries(backend, text.dtype, many, text.queries, /*pad=*/3);
  const DeviceTensor keys(backend, text.dtype, few, text.keys, /*pad=*/1);
  const DeviceTensor values(backend, text.dtype, few, text.values, /*pad=*/5);
  const DeviceTensor out = unwritten(backend, text.dtype, many, /*pad=*/2);
  pieces.push_back(text.n_tokens - std::accumulate(pieces.begin(), pieces.end(), int64_t{0}));
  int64_t first = 0;
  for (const int64_t n : pieces) {
    attention->attend({.queries = queries.view().rows_from(first, n),
                       .keys = keys.view().rows_from(first, n),
                       .values = values.view().rows_from(first, n),
                       .out = out.view().rows_from(first, n)});
    first += n;
  }
  return {out.values(), attention->keys_read()};
}

// Softmax over the keys that `reads` names, in float64.
using Reads = std::function<bool(int64_t t, int64_t head, int64_t j)>;
Answer plain(Text text, const Reads& reads) {
  Answer answer{std::vector<float>(text.queries.size()), 0};
  for (int64_t t = 0; t < text.n_tokens; ++t)
    for (int64_t head = 0; head < Text::kHeads; ++head) {
      double total = 0;
      std::vector<double> sum(static_cast<size_t>(text.dim));
      for (int64_t j = 0; j <= t; ++j) {
        if (!reads(t, head, j)) continue;
        ++answer.keys_read;
        const double weight = std::exp(text.score(t, head, j));
        total += weight;
        for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * text.value(j, head)[d];
      }
      for (size_t d = 0; d < sum.size(); ++d)
        answer.out[static_cast<size_t>((t * Text::kHeads + head) * text.dim) + d] =
            static_cast<float>(sum[d] / total);
    }
  return answer;
}
bool everything(int64_t, int64_t, int64_t) { return true; }

// Values are at most 1. Scores of up to 10 err by some 20 roundings of f32, weights by as much
// relatively; of bf16 inputs are exact and the result is rounded.
double bound(DType dtype) { return dtype == DType::kBF16 ? 2 * kBF16Unit : 400 * kF32Unit; }

// The fewest blocks of a share of the mass, the first and the last always, tried one by one.
std::vector<bool> blocks_of(std::vector<double> mass, double keep) {
  std::vector<bool> taken(mass.size());
  const double all = std::accumulate(mass.begin(), mass.end(), 0.0);
  double sum = 0;
  const auto take = [&](size_t block) {
    if (taken[block]) return;
    taken[block] = true;
    sum += mass[block];
    mass[block] = -1;
  };
  take(0);
  take(mass.size() - 1);
  while (sum < keep * all)
    take(static_cast<size_t>(std::max_element(mass.begin(), mass.end()) - mass.begin()));
  return taken;
}

// Queries of one block and one pass, which choose together.
struct Group {
  int64_t begin, end;
};
std::vector<Group> groups_of(const Text& text, std::vector<int64_t> pieces) {
  pieces.push_back(text.n_tokens - std::accumulate(pieces.begin(), pieces.end(), int64_t{0}));
  std::vector<Group> groups;
  int64_t t = 0, pass_end = 0;
  for (const int64_t n : pieces)
    for (pass_end += n; t < pass_end; t = groups.back().end)
      groups.push_back({t, std::min((t / 64 + 1) * 64, pass_end)});
  return groups;
}

using Masses = std::function<std::vector<double>(Text&, const Group&, int64_t head)>;
Answer plain_blocks(Text text, double keep, const Masses& masses,
                    const std::vector<int64_t>& pieces = {}) {
  std::vector<std::vector<bool>> taken;  // of each query and head
  for (const Group& group : groups_of(text, pieces)) {
    std::vector<std::vector<bool>> heads;
    for (int64_t head = 0; head < Text::kHeads; ++head)
      heads.push_back(blocks_of(masses(text, group, head), keep));
    for (int64_t t = group.begin; t < group.end; ++t)
      taken.insert(taken.end(), heads.begin(), heads.end());
  }
  return plain(text, [&](int64_t t, int64_t head, int64_t j) {
    return taken[static_cast<size_t>(t * Text::kHeads + head)][static_cast<size_t>(j / 64)];
  });
}

// Of the last block of keys, those that have come by the end of the group.
std::vector<double> pooled_masses(Text& text, const Group& group, int64_t head) {
  std::vector<double> masses;
  for (int64_t b = 0; b <= group.begin / 64; ++b) {
    const int64_t end = std::min(64 * (b + 1), group.end);
    double score = 0;
    for (int64_t t = group.begin; t < group.end; ++t)
      for (int64_t j = 64 * b; j < end; ++j) score += text.score(t, head, j);
    masses.push_back(std::exp(score / static_cast<double>(group.end - group.begin) /
                              static_cast<double>(end - 64 * b)));
  }
  return masses;
}

std::vector<double> true_masses(Text& text, const Group& group, int64_t head) {
  std::vector<double> masses(static_cast<size_t>(group.begin / 64 + 1));
  for (int64_t t = group.begin; t < group.end; ++t) {
    double total = 0;
    for (int64_t j = 0; j <= t; ++j) total += std::exp(text.score(t, head, j));
    for (int64_t j = 0; j <= t; ++j)
      masses[static_cast<size_t>(j / 64)] += std::exp(text.score(t, head, j)) / total;
  }
  return masses;
}

TEST_P(EveryBackend, BaselineKeepingEverythingIsDenseAttention) {
  for (const int64_t head_dim : {16, 80, 128}) {
    const Text text(300, dtype(), head_dim);
    const Answer dense = plain(text, everything);
    for (const BaselineKind kind : kAll) {
      const Answer got = attend(*backend, kind, 1, text);
      EXPECT_CLOSE(got.out, dense.out, bound(dtype()));
      // Quest reads to choose.
      EXPECT_EQ(got.keys_read == dense.keys_read, kind != kQuest);
    }
  }
}

TEST_P(EveryBackend, BaselineWindowReadsTheFirstAndTheLastKeys) {
  const Text text(300, dtype());
  for (const auto& [keep, window] : {std::pair{0.1, 30}, {0.002, 1}}) {
    const Answer expected = plain(text, [&, window = window](int64_t t, int64_t, int64_t j) {
      return j < kBaselineSinks || j > t - window;
    });
    const Answer got = attend(*backend, kWindow, keep, text);
    EXPECT_CLOSE(got.out, expected.out, bound(dtype()));
    EXPECT_EQ(got.keys_read, expected.keys_read);
  }
}

// The sum over d of the largest q_d k_d of a page, which is that of q_d min_d or q_d max_d.
double page_bound(Text& text, int64_t t, int64_t head, int64_t page) {
  double sum = 0;
  for (int64_t d = 0; d < text.dim; ++d) {
    double largest = -INFINITY;
    for (int64_t j = 16 * page; j < 16 * (page + 1); ++j)
      largest = std::max(largest, double{text.query(t, head)[d]} * text.key(j, head)[d]);
    sum += largest;
  }
  return sum;
}

// 300 tokens have 19 pages; 0.3 of them are 6.
TEST_P(EveryBackend, BaselineQuestReadsThePagesOfTheHighestBounds) {
  Text text(300, dtype());
  int64_t visible = 0;
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> bounds;  // of pages before t's own
  for (int64_t t = 0; t < text.n_tokens; ++t)
    for (int64_t head = 0; head < Text::kHeads; ++head) {
      visible += t / 16 + 1;
      for (int64_t page = 0; page < t / 16; ++page)
        bounds[{t, head}].push_back(page_bound(text, t, head, page));
    }
  for (const auto& [keep, n_pages] : {std::pair{0.3, 6}, {0.001, 2}, {0.95, 18}}) {
    const Answer expected = plain(text, [&, n_pages = n_pages](int64_t t, int64_t head, int64_t j) {
      const int64_t own = t / 16, page = j / 16;
      if (page == 0 || page == own) return true;
      const std::vector<double>& of = bounds[{t, head}];
      return std::count_if(of.begin() + 1, of.end(), [&](double other) {
               return other > of[static_cast<size_t>(page)];
             }) < n_pages - 2;
    });
    const Answer got = attend(*backend, kQuest, keep, text);
    EXPECT_CLOSE(got.out, expected.out, bound(dtype()));
    EXPECT_EQ(got.keys_read, expected.keys_read + visible);
  }
}

TEST_P(EveryBackend, BaselinePooledAndOracleReadTheFewestBlocksOfTheMass) {
  for (const auto& [keep, head_dim] : {std::pair{0.1, 16}, {0.6, 16}, {0.9, 16}, {0.6, 128}}) {
    const Text text(500, dtype(), head_dim);  // the last block is not whole
    for (const auto& [kind, masses] :
         {std::pair<BaselineKind, Masses>{kPooled, pooled_masses}, {kOracle, true_masses}}) {
      const Answer expected = plain_blocks(text, keep, masses);
      const Answer got = attend(*backend, kind, keep, text);
      EXPECT_CLOSE(got.out, expected.out, bound(dtype()));
      EXPECT_EQ(got.keys_read, expected.keys_read);
    }
  }
}

// One key that the last query needs, among others that cancel out in the mean of their block.
TEST_P(EveryBackend, BaselineOracleAndQuestFindWhatAMeanHides) {
  Text text(320, dtype());
  std::fill(text.queries.begin(), text.queries.end(), 0.0f);
  std::fill(text.keys.begin(), text.keys.end(), 0.0f);
  text.query(319, 0)[3] = 40;
  text.key(100, 0)[3] = 4;
  for (int64_t j = 101; j < 105; ++j) text.key(j, 0)[3] = -1.25f;
  const auto reaches = [&](BaselineKind kind, double keep) {
    const Answer got = attend(*backend, kind, keep, text);
    return std::abs(got.out[static_cast<size_t>(319 * Text::kHeads * text.dim)] -
                    text.value(100, 0)[0]) < bound(dtype());
  };
  EXPECT_TRUE(reaches(kOracle, 0.8));
  EXPECT_TRUE(reaches(kQuest, 0.15));  // 3 of 20 pages
  EXPECT_FALSE(reaches(kPooled, 0.8));
  EXPECT_FALSE(reaches(kWindow, 0.5));
}

TEST_P(EveryBackend, BaselineTheFutureChangesNothing) {
  const Text text(400, dtype());
  // Queries of a block choose together, so what follows its border counts from there on.
  for (const auto& [kind, border] :
       {std::pair{kWindow, 201}, {kQuest, 201}, {kPooled, 192}, {kOracle, 192}}) {
    Text changed = text;
    for (int64_t t = border; t < text.n_tokens; ++t)
      for (int64_t head = 0; head < Text::kHeads; ++head) {
        for (int64_t d = 0; d < text.dim; ++d) changed.query(t, head)[d] *= -3;
        for (int64_t d = 0; d < text.dim; ++d) changed.key(t, head)[d] += 2;
        for (int64_t d = 0; d < text.dim; ++d) changed.value(t, head)[d] -= 1;
      }
    auto first = attend(*backend, kind, 0.3, text).out,
         second = attend(*backend, kind, 0.3, changed).out;
    EXPECT_NE(first, second);
    first.resize(static_cast<size_t>(border * Text::kHeads * text.dim));
    second.resize(first.size());
    EXPECT_SAME_BITS(second, first);
  }
}

TEST_P(EveryBackend, BaselinePassesOfWholeBlocksGiveWhatOneGives) {
  const Text text(400, dtype());
  for (const BaselineKind kind : kAll) {
    const Answer whole = attend(*backend, kind, 0.3, text),
                 pieces = attend(*backend, kind, 0.3, text, {64, 192});
    EXPECT_SAME_BITS(pieces.out, whole.out);
    EXPECT_EQ(pieces.keys_read, whole.keys_read);
  }
}

// Passes that end within a page and within a block, single steps, and a pass over several blocks.
std::vector<int64_t> uneven_pieces() {
  std::vector<int64_t> pieces{100, 1, 1, 27, 1, 0, 130};
  pieces.insert(pieces.end(), 80, 1);  // decoding, past the end of a block
  return pieces;
}

TEST_P(EveryBackend, BaselineWindowAndQuestReadTheSameInAnyPasses) {
  const Text text(360, dtype());
  for (const BaselineKind kind : {kWindow, kQuest}) {
    const Answer whole = attend(*backend, kind, 0.3, text);
    for (const auto& pieces : {uneven_pieces(), std::vector<int64_t>(359, 1)}) {
      const Answer got = attend(*backend, kind, 0.3, text, pieces);
      EXPECT_SAME_BITS(got.out, whole.out);
      EXPECT_EQ(got.keys_read, whole.keys_read);
    }
  }
}

TEST_P(EveryBackend, BaselineQueriesOfOneBlockAndOnePassChooseTogether) {
  const Text text(360, dtype());
  for (const double keep : {0.1, 0.6, 0.9})
    for (const auto& [kind, masses] :
         {std::pair<BaselineKind, Masses>{kPooled, pooled_masses}, {kOracle, true_masses}}) {
      for (const auto& pieces : {uneven_pieces(), std::vector<int64_t>(359, 1)}) {
        const Answer expected = plain_blocks(text, keep, masses, pieces);
        const Answer got = attend(*backend, kind, keep, text, pieces);
        EXPECT_CLOSE(got.out, expected.out, bound(dtype()));
        EXPECT_EQ(got.keys_read, expected.keys_read);
      }
    }
}

TEST_P(EveryBackend, BaselinesAreNotTheReferences) {
  EXPECT_THROW(reference->make_baseline_attention({}), Error);
}

}  // namespace
}  // namespace sluice::impl::test
