// Gates that decide on the device: their decisions against the reference's residuals, the products
// that follow, and where sequences stand. docs/algorithm.md, section 4.

#include <array>
#include <numeric>

#include "backend/cuda/runtime/device.h"
#include "layer/linear_gate.h"
#include "parity/attend_case.h"
#include "parity/subspace_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

class CudaGate : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    backend = make_cuda_backend(DType::kBF16);
  }
  std::unique_ptr<Backend> backend;
  const std::unique_ptr<Backend> reference = make_reference_backend(DType::kBF16);
};

struct Size {
  int64_t n_in, rank, n_out;
};

// Fewer directions than blocks, a pair to a block and more; rows that a pass of the projection
// holds, and longer ones; widths that are no multiple of 8; one output, more than wait in
// registers, and directions of which one tile has more than there is room for.
constexpr Size kSizes[] = {{64, 4, 33},       {1031, 31, 70},  {4096, 256, 700}, {640, 300, 65},
                           {1040, 530, 129},  {20000, 24, 40}, {96, 1, 1},       {80, 40, 9000},
                           {272, 256, 19001}, {2200, 2100, 40}};

// Rows at several distances from the span of the directions, as bf16 holds them.
SubspaceCase rows_near(const Size& s) {
  const std::vector<double> distances = {0.5, 0.1, 0.04, 0.01, 0.001};
  std::vector<float> all;
  if (s.rank < 1000) {
    all = orthonormal_rows(s.rank + 1, s.n_in, 3);
  } else {  // which would take long
    all.resize(static_cast<size_t>((s.rank + 1) * s.n_in));
    for (int64_t j = 0; j <= s.rank; ++j)
      all[static_cast<size_t>(j * s.n_in + (j + 17) % s.n_in)] = j % 3 == 0 ? -1.0f : 1.0f;
  }
  SubspaceCase c{std::ssize(distances), s.n_in, s.rank, {all.begin(), all.end() - s.n_in}, {}};
  const std::vector<float> parts = random_values(c.n_rows * s.rank, 4);
  for (int64_t row = 0; row < c.n_rows; ++row) {
    const float* part = parts.data() + row * s.rank;
    const double outside = distances[static_cast<size_t>(row)] * std::sqrt(dot(part, part, s.rank));
    for (int64_t i = 0; i < s.n_in; ++i) {
      double x = outside * all[static_cast<size_t>(s.rank * s.n_in + i)];
      for (int64_t j = 0; j < s.rank; ++j)
        x += double{part[j]} * all[static_cast<size_t>(j * s.n_in + i)];
      c.x.push_back(rounded(DType::kBF16, static_cast<float>(x)));
    }
  }
  return c;
}

// A random matrix in the forms that a gate takes, and gates of it.
struct Gated {
  Gated(Backend& backend, const Size& s, const std::vector<float>& vectors)
      : on(backend),
        source(matrix_source(s.n_out, s.n_in, random_values(s.n_out * s.n_in, 5),
                             random_values(s.n_out, 6))),
        basis(backend.make_basis(vectors, s.rank, s.n_in)),
        image(backend.pack_image(source, *basis)),
        dense(backend.pack_linear(source)) {}
  std::unique_ptr<RowGate> gate(double epsilon, int32_t slow_tokens = 64) const {
    return on.device_gates()->make_gate({.dense = dense.get(),
                                         .epsilon = epsilon,
                                         .basis = basis.get(),
                                         .image = image.get(),
                                         .limits = {.slow_tokens = slow_tokens}});
  }

  Backend& on;
  const MatrixSource source;
  const std::unique_ptr<SubspaceBasis> basis;
  const std::unique_ptr<LinearWeights> image, dense;
};

TEST_F(CudaGate, DecisionsAndProductsAreTheReferences) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(testing::Message() << s.n_in << " on " << s.rank << " to " << s.n_out);
    const SubspaceCase c = rows_near(s);
    const std::vector<float> expected = c.project(*reference).residuals;
    const Projection own = c.project(*backend);
    const Gated gated(*backend, s, c.vectors);
    const auto product = [&](const LinearWeights& by, const std::vector<float>& from, int64_t row) {
      const int64_t n = by.n_in();
      const DeviceTensor x(*backend, DType::kBF16, {1, n},
                           {from.begin() + row * n, from.begin() + (row + 1) * n});
      const DeviceTensor out = unwritten(*backend, DType::kF32, {1, s.n_out});
      backend->linear({.weights = &by, .x = x.view(), .out = out.view()});
      return out.values();
    };
    std::vector<int64_t> rows(static_cast<size_t>(c.n_rows));
    std::iota(rows.begin(), rows.end(), 0);
    // As near to the edge as residuals are promised to be right, twice that to be safe from the
    // reference's own error, and further off.
    struct Edge {
      double factor, offset;
    };
    const std::array<Edge, 4> edges = {{{1, -2e-5}, {1, 2e-5}, {0.5, 0}, {2, 0}}};
    for (const auto& [row, edge] : thinned(combinations(rows, edges), 9)) {
      const double residual = expected[static_cast<size_t>(row)];
      const double epsilon = edge.factor * residual + edge.offset;
      const auto by_image = product(*gated.image, own.coordinates, row),
                 by_dense = product(*gated.dense, c.x, row);
      SCOPED_TRACE(testing::Message()
                   << "row " << row << " misses " << residual << ", epsilon " << epsilon);
      const auto gate = gated.gate(epsilon);
      ASSERT_NE(gate, nullptr);
      const DeviceTensor x(*backend, DType::kBF16, {1, s.n_in},
                           {c.x.begin() + row * s.n_in, c.x.begin() + (row + 1) * s.n_in});
      const DeviceTensor out = unwritten(*backend, DType::kF32, {1, s.n_out});
      gate->run({.weights = nullptr, .x = x.view(), .out = out.view()}, 0);
      const std::vector<RowDecision> decisions = gate->take();
      ASSERT_EQ(decisions.size(), 1u);
      const bool fast = residual <= epsilon;
      EXPECT_EQ(decisions[0].kept, fast ? 1 : 0);
      EXPECT_NEAR(decisions[0].residual * decisions[0].residual, residual * residual, 1e-4);
      // By the image: sums in another order, and one coordinate that was rounded to the other
      // neighbour.
      const double one_step = 2 * kBF16Unit / std::sqrt(static_cast<double>(s.rank));
      EXPECT_LE(relative_distance(out.values(), fast ? by_image : by_dense),
                fast ? one_step + 1e-5 : 1e-5);
    }
  }
}

// Whatever the order in which messages of blocks arrive: rows that are near, those that only E or
// the definition tells, and slow ones.
TEST_F(CudaGate, RunsGiveTheSameBits) {
  const Size s{4096, 256, 4096};
  const SubspaceCase c = rows_near(s);
  const Gated gated(*backend, s, c.vectors);
  const double residual = c.project(*reference).residuals.back();
  // The last row twice.
  std::vector<float> rows(c.x.end() - s.n_in, c.x.end());
  rows.insert(rows.end(), c.x.end() - s.n_in, c.x.end());
  const DeviceTensor x(*backend, DType::kBF16, {2, s.n_in}, rows);
  const size_t n_runs = kFewCases ? 5 : 50;
  for (const double epsilon : {0.2, residual + 2e-5, residual - 2e-5, residual / 2}) {
    SCOPED_TRACE(testing::Message() << "misses " << residual << ", epsilon " << epsilon);
    const auto gate = gated.gate(epsilon, 1000);
    std::vector<float> first;
    for (size_t i = 0; i < n_runs; ++i) {
      const DeviceTensor out = unwritten(*backend, DType::kF32, {2, s.n_out});
      gate->run({.weights = nullptr, .x = x.view(), .out = out.view()}, 0);
      if (i == 0) first = out.values();
      EXPECT_SAME_BITS(out.values(), first);
    }
    const std::vector<RowDecision> decisions = gate->take();
    EXPECT_EQ(decisions.size(), 2 * n_runs);
    for (const RowDecision& decision : decisions) {
      EXPECT_EQ(decision.kept, residual <= epsilon ? 1 : 0);
      EXPECT_EQ(decision.residual, decisions[0].residual);
    }
  }
}

TEST_F(CudaGate, ZerosMissNothingAndRowsWithoutANormEverything) {
  const Size s{64, 4, 33};
  const SubspaceCase c = rows_near(s);
  const Gated gated(*backend, s, c.vectors);
  const auto gate = gated.gate(0.9);
  const DeviceTensor out = unwritten(*backend, DType::kF32, {1, s.n_out});
  for (const float value : {0.0f, INFINITY, NAN}) {
    std::vector<float> x(c.x.begin(), c.x.begin() + s.n_in);
    if (value == 0) std::fill(x.begin(), x.end(), 0.0f);
    x[7] = value;
    const DeviceTensor row(*backend, DType::kBF16, {1, s.n_in}, x);
    gate->run({.weights = nullptr, .x = row.view(), .out = out.view()}, 0);
    const std::vector<RowDecision> decisions = gate->take();
    EXPECT_EQ(decisions[0].residual, value == 0 ? 0.0f : 1.0f);
    EXPECT_EQ(decisions[0].kept, value == 0 ? 1 : 0);
  }
}

// A gate of the model's layers on either backend.
class Tokens {
 public:
  static constexpr int64_t kIn = 64, kOut = 40, kRank = 4;

  Tokens(Backend& backend, int64_t n_batch)
      : backend_(backend), group_(backend.pack_linear(source())) {
    std::vector<float> vectors(static_cast<size_t>(kRank * kIn));
    for (int64_t i = 0; i < kRank; ++i) vectors[static_cast<size_t>(i * kIn + i)] = 1;
    group_.add_subspace(backend, source(), backend.make_basis(vectors, kRank, kIn));
    gate_ = std::make_unique<LinearGate>(
        backend, group_,
        GroupPlan{.kind = LinearKind::kGsi, .rank = kRank, .epsilon = 0.1, .adaptive = 0}, n_batch,
        std::make_shared<LinearScratch>());
  }

  // The next tokens of every sequence, or of one: 'f' lies within the basis, anything else does
  // not.
  std::vector<float> run(const std::string& letters, int64_t sequence = -1) {
    std::vector<float> rows;
    for (const char letter : letters) {
      for (int64_t i = 0; i < kIn; ++i)
        rows.push_back(rounded(DType::kBF16, i < kRank || letter != 'f'
                                                 ? 0.25f * static_cast<float>((n_++ * 7) % 9) - 1
                                                 : 0.0f));
    }
    const auto n = static_cast<int64_t>(letters.size());
    const DeviceTensor x(backend_, DType::kBF16, {n, kIn}, rows);
    const DeviceTensor out(backend_, DType::kF32, {n, kOut},
                           std::vector<float>(static_cast<size_t>(n * kOut), 1.0f));
    gate_->run({.weights = nullptr, .x = x.view(), .accumulate = true, .out = out.view()},
               sequence);
    return out.values();
  }
  LinearGate& gate() { return *gate_; }

 private:
  static MatrixSource source() {
    return matrix_source(kOut, kIn, random_values(kOut * kIn, 8), random_values(kOut, 9));
  }
  Backend& backend_;
  LinearGroup group_;
  std::unique_ptr<LinearGate> gate_;
  int64_t n_ = 0;
};

void expect_same_counts(const LinearCounts& got, const LinearCounts& expected) {
  EXPECT_EQ(got.n_tokens, expected.n_tokens);
  EXPECT_EQ(got.n_fast, expected.n_fast);
  EXPECT_EQ(got.n_bypassed, expected.n_bypassed);
  EXPECT_EQ(got.elements, expected.elements);
  EXPECT_EQ(got.residuals.count(), expected.residuals.count());
}

std::string some_letters(int64_t n, char letter) {
  return std::string(static_cast<size_t>(n), letter);
}

// Singly and a few at a time the device decides, more at once the host; the gate closes and opens
// again on either.
TEST_F(CudaGate, SequencesStandWhereTheReferencesDo) {
  const std::string whole = "fsf" + some_letters(63, 's') + "f" + some_letters(64, 's') +
                            some_letters(1030, 'f') + "ssfsf" + some_letters(70, 's') + "fff";
  // A gate that closes is all of a short text.
  const std::string text = kFewCases ? "sf" + some_letters(66, 's') + "ff" : whole;
  const std::array<std::vector<size_t>, 5> all_pieces = {
      {{1}, {8}, {3, 1}, {1, 1, 20, 1}, {200, 1, 1, 1}}};
  for (const std::vector<size_t>& pieces : thinned(all_pieces, 2)) {
    SCOPED_TRACE(testing::Message() << "pieces of " << pieces.front() << " …");
    Tokens device(*backend, 1), host(*reference, 1);
    size_t n_pieces = 0;
    for (size_t begin = 0; begin < text.size();) {
      const std::string piece = text.substr(begin, pieces[n_pieces++ % pieces.size()]);
      const auto got = device.run(piece), expected = host.run(piece);
      EXPECT_CLOSE(got, expected, dot_error(DType::kBF16, Tokens::kIn, Tokens::kIn));
      begin += piece.size();
    }
    expect_same_counts(device.gate().counts(), host.gate().counts());
    EXPECT_GT(device.gate().counts().n_bypassed, 0);
    device.gate().reset();
    EXPECT_EQ(device.gate().counts().n_tokens, 0);
    device.run("f");
    EXPECT_EQ(device.gate().counts().n_fast, 1);
  }
}

TEST_F(CudaGate, SequencesOfABatchAreApart) {
  Tokens device(*backend, 2), host(*reference, 2);
  const int n_steps = kFewCases ? 70 : 200;  // the first one's gate closes after 64
  for (int step = 0; step < n_steps; ++step) {
    const std::string letters = step % 3 == 0 && step > 150 ? "ff" : "sf";
    device.run(letters);
    host.run(letters);
  }
  expect_same_counts(device.gate().counts(), host.gate().counts());
}

// One sequence after the other, as mode `copy` has rows of them: the last one's gate closes, and
// now and then the host decides on another one's.
TEST_F(CudaGate, SequencesAlternate) {
  Tokens device(*backend, 3), host(*reference, 3);
  const auto run = [&](int64_t sequence, const std::string& letters) {
    SCOPED_TRACE(testing::Message() << letters << " of sequence " << sequence);
    const auto got = device.run(letters, sequence), expected = host.run(letters, sequence);
    EXPECT_CLOSE(got, expected, dot_error(DType::kBF16, Tokens::kIn, Tokens::kIn));
  };
  const int n_rounds = kFewCases ? 26 : 40, n_slow = n_rounds - 4;
  for (int round = 0; round < n_rounds; ++round) {
    run(2, round < n_slow ? "ss" : "fs");
    run(0, round % 2 == 0 ? "f" : "sff");
    run(2, round < n_slow ? "s" : "f");
    run(1, "fs");
    if (round % 7 == 3) run(1, "sfsfsfffffsssssfssss");
    if (round % 10 == 5) run(-1, "sfs");
  }
  expect_same_counts(device.gate().counts(), host.gate().counts());
  EXPECT_GT(device.gate().counts().n_bypassed, 0);
}

TEST_F(CudaGate, DecisionsAreHeardWhenThereIsNoMoreRoom) {
  if (kFewCases) GTEST_SKIP() << "a launch for every place, of a kernel that other tests launch";
  Tokens device(*backend, 1);
  const int64_t n = RowGate::kRoom + 40;
  for (int64_t i = 0; i < n; i += 8) device.run("ffsffsff");
  const LinearCounts counts = device.gate().counts();
  EXPECT_EQ(counts.n_tokens, n);
  EXPECT_EQ(counts.n_fast, n / 8 * 6);
  EXPECT_EQ(counts.residuals.count(), n);
}

}  // namespace
}  // namespace sluice::impl::test
