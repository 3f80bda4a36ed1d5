// Times the selection of a layer on one device at planted redundancy, beside the rate of a large
// matrix product in the same run. The rate counts the products that the method needs: a token with
// the representatives before it, T r d operations. And the selection of one token more, as decoding
// has it.
//
// Rows are what attention's norm makes of the residual stream, as in a model. For selection it
// hands on sums of squares, which it need not do otherwise, so the time of selection is that of
// both, less that of a norm that does not.
//
// The last column is of rows near a basis, selected in it: how near can be said.
//
//   sluice_cuda_select_bench [most tokens [least tokens [rest of a row's norm]]]

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/selection/accelerated.h"
#include "plant.h"
#include "stopwatch.h"

namespace {

using namespace sluice::impl;
using cuda::Context;

constexpr int64_t kModel = 4096, kRank = 256, kLayers = 4;  // selectors that take turns
constexpr int kTurns = 11, kWarmUps = 2;
constexpr int64_t kMore = 64;  // tokens behind the others
static_assert(kTurns + kWarmUps <= kMore);

using Run = std::function<void(int)>;

// Milliseconds of one of n runs between two events: what `run` takes longer than `less`, which is
// timed in turn with it, or all of it. The median of several such.
double time_runs(Context& context, int n, const std::function<void()>& before, const Run& run,
                 const Run& less = {}) {
  bench::Stopwatch watch(context);
  const auto time_of = [&](const Run& work, int times) {
    context.synchronize();
    return watch.milliseconds([&] {
      for (int i = 0; i < times * n; ++i) work(i % n);
    }) / (times * n);
  };
  std::vector<double> times;
  for (int turn = -kWarmUps; turn < kTurns; ++turn) {
    before();
    const double without = less ? time_of(less, bench::kOfLess) : 0, ms = time_of(run, 1);
    if (turn >= 0) times.push_back(ms - without);
  }
  return bench::middle(times).median;
}

// bf16 or f32 rows that live on the device.
struct Rows {
  Rows(const std::shared_ptr<Context>& context, DType dtype, int64_t n, int64_t width)
      : memory(context, n * width * element_bytes(dtype)),
        view(memory.data(), dtype, {n, width}, Device::kCuda) {}
  cuda::DeviceArray<std::byte> memory;
  Tensor view;
};

// TFLOP/s of a product of 8192 x 4096 with 4096 x 8192 random numbers.
double matrix_rate(const std::shared_ptr<Context>& context) {
  constexpr int64_t kSide = 8192;
  const cuda::DeviceMatrix weights(context, DType::kBF16, kSide, kModel);
  const Rows x(context, DType::kBF16, kSide, kModel), out(context, DType::kBF16, kSide, kSide);
  bench::fill_normal(*context, weights.rows, 5);
  bench::fill_normal(*context, x.view, 6);
  cuda::Multiplier multiplier(context);
  const double ms = time_runs(
      *context, 10, [] {},
      [&](int) {
        multiplier.run(weights, {}, {.weights = nullptr, .x = x.view, .out = out.view});
      });
  return 2.0 * kSide * kSide * kModel / ms * 1e-9;
}

// The residual stream, what a norm makes of it, and the sums of squares that it may hand on.
struct Stream {
  Stream(const std::shared_ptr<Context>& on, int64_t n)
      : context(on),
        rows(on, DType::kBF16, n, kModel),
        residual(on, DType::kF32, n, kModel),
        squares(on, DType::kF32, n, 4),
        weight(on, std::vector<float>(kModel, 1.0f)) {}
  void norm(bool with_squares) const {
    cuda::norm(*context,
               {.kind = NormKind::kRms,
                .epsilon = 1e-5f,
                .x = residual.view,
                .weight = ConstTensor(weight.data(), DType::kF32, {kModel}, Device::kCuda),
                .bias = {},
                .out = rows.view,
                .squares = with_squares ? squares.view : Tensor()});
  }
  std::shared_ptr<Context> context;
  Rows rows, residual, squares;
  cuda::DeviceArray<float> weight;
};

void print_norm_times(const std::shared_ptr<Context>& context, int64_t n_tokens) {
  const Stream stream(context, n_tokens);
  bench::fill_normal(*context, stream.rows.view, 7);
  cuda::convert(*context, stream.rows.view, stream.residual.view);
  const Run without = [&](int) { stream.norm(false); },
            with_squares = [&](int) { stream.norm(true); };
  const double ms = time_runs(
      *context, bench::kOfLess * kLayers, [] {}, without);
  const double more_ms = time_runs(
      *context, bench::kOfLess * kLayers, [] {}, with_squares, without);
  std::printf("the norm of %lld rows: %.1f us, with sums of squares %.1f us\n",
              static_cast<long long>(n_tokens), 1e3 * ms, 1e3 * (ms + more_ms));
}

struct Case {
  int64_t n_tokens;
  double share;
  bench::Spread spread;
  bench::Near near = {};  // a basis, or none
};

// Planted rows, and the set of the layer before, on the device as it would be.
struct Planted : Stream {
  Planted(const std::shared_ptr<Context>& on, const Case& c) : Stream(on, c.n_tokens) {
    const auto n_reps =
        static_cast<int64_t>(std::llround(c.share * static_cast<double>(c.n_tokens)));
    const auto flags = bench::plant_rows(*context, rows.view, n_reps, c.spread, c.near);
    cuda::convert(*context, rows.view, residual.view);
    norm(false);
    SelectorSpec spec;
    spec.taus = {bench::kPlantedTau};
    spec.d_model = kModel;
    spec.rule = SelectRule::kFixed;
    above = cuda::make_cuda_selector(context, spec);
    above->extend({.rows = rows.view, .residual = rows.view, .inherited = {flags}});
    const std::vector<uint8_t> more(kMore, 0);
    const ConstTensor next = rows.view.rows_from(c.n_tokens - kMore, kMore);
    above->extend({.rows = next, .residual = next, .inherited = {more}});
  }
  std::unique_ptr<Selector> above;
};

struct Timed {
  double ms, one_ms, r;  // of all tokens, of one more
  int64_t products, dropped;
};

Timed time_selection(const std::shared_ptr<Context>& context, const Planted& planted,
                     const SelectorSpec& spec) {
  std::vector<std::unique_ptr<Selector>> selectors;
  for (int64_t i = 0; i < kLayers; ++i)
    selectors.push_back(cuda::make_cuda_selector(context, spec));
  SelectArgs args{.rows = planted.rows.view,
                  .residual = planted.residual.view,
                  .inherited = {},
                  .row_squares = squares_of_out(planted.squares.view),
                  .residual_squares = squares_of_x(planted.squares.view)};
  if (inherits(spec.rule)) args.inherited.emplace_back(*planted.above, 0);
  const double ms = time_runs(
      *context, kLayers,
      [&] {
        for (const auto& selector : selectors) selector->reset();
      },
      [&](int i) {
        planted.norm(true);
        selectors[static_cast<size_t>(i)]->extend(args);
      },
      [&](int) { planted.norm(false); });
  Timed timed{ms, 0, static_cast<double>(selectors[0]->sets()[0].n_clusters),
              selectors[0]->products(), selectors[0]->pairs_dropped()};
  const int64_t last = planted.rows.view.rows() - 1;
  args.rows = planted.rows.view.rows_from(last, 1);
  args.residual = planted.residual.view.rows_from(last, 1);
  args.row_squares = args.residual_squares = {};
  timed.one_ms = time_runs(
      *context, kLayers, [] {}, [&](int i) { selectors[static_cast<size_t>(i)]->extend(args); });
  return timed;
}

void run_case(const std::shared_ptr<Context>& context, const Case& c, double ceiling) {
  const Planted planted(context, {c.n_tokens, c.share, c.spread});
  SelectorSpec spec;
  spec.taus = {bench::kPlantedTau};
  spec.d_model = kModel;
  spec.sinks = 4;
  const auto n_tokens = static_cast<double>(c.n_tokens);
  double one_ms = 0;
  std::printf("| %5lld%s |", static_cast<long long>(c.n_tokens),
              c.spread == bench::Spread::kSkewed ? " skewed" : "");
  for (const auto& [rule, outliers] :
       {std::pair(SelectRule::kCascadeCover, 0.0), std::pair(SelectRule::kCascadeCover, 8.0),
        std::pair(SelectRule::kGreedy, 0.0)}) {
    spec.rule = rule;
    spec.outlier_ratio = outliers;
    const Timed timed = time_selection(context, planted, spec);
    const double rate = kModel * n_tokens * timed.r / timed.ms * 1e-9;
    if (rule == SelectRule::kCascadeCover && outliers == 0)
      std::printf(" %.3f |", timed.r / n_tokens);
    std::printf(" %7.1f us, %3.0f (%2.0f%%), %6.2f |", 1e3 * timed.ms, rate, 100 * rate / ceiling,
                static_cast<double>(timed.products) / (0.5 * n_tokens * timed.r));
    if (outliers > 0) one_ms = timed.one_ms;
  }
  std::printf(" %5.1f us |", 1e3 * one_ms);
  const Planted near(context, c);
  spec.rule = SelectRule::kCascadeCover;
  spec.outlier_ratio = 8;
  const Timed without = time_selection(context, near, spec);
  spec.basis = c.near.basis;
  const Timed within = time_selection(context, near, spec);
  std::printf(
      " %7.1f us, %4.2f, %6.4f |\n", 1e3 * within.ms, without.ms / within.ms,
      static_cast<double>(within.products) / static_cast<double>(within.products + within.dropped));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t most = argc > 1 ? std::stoll(argv[1]) : 32768;
    const int64_t least = argc > 2 ? std::stoll(argv[2]) : 0;
    const float rest = argc > 3 ? std::stof(argv[3]) : 0.2f;
    const bench::Near near{bench::random_basis(kRank, kModel), rest};
    const auto context = std::make_shared<Context>(0);
    const double ceiling = matrix_rate(context);
    std::printf(
        "%s\n\na matrix product: %.0f TFLOP/s. After each time: TFLOP/s of the products that are "
        "needed (share of that), and how many times as many were done\nOf all tokens: the norm "
        "before, with sums of squares for selection, and selection, less the norm without; of one "
        "token more: selection alone\nIn a basis: rows near "
        "one (%.2f of a row's norm is outside it), outliers exempt; how many times faster than "
        "without it, and the share of pairs that it does not drop\n\n",
        context->description().c_str(), ceiling, static_cast<double>(rest));
    const std::vector<int64_t> lengths = {512, 2048, 8192, 32768};
    for (const int64_t n_tokens : lengths)
      if (least <= n_tokens && n_tokens <= most) print_norm_times(context, n_tokens);
    std::printf(
        "\n| T | r/T | cascade-cover | the same, outliers exempt | greedy | one token more | in a "
        "basis of %d |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n",
        static_cast<int>(kRank));
    for (const int64_t n_tokens : lengths)
      for (const double share : {0.25, 0.1})
        if (least <= n_tokens && n_tokens <= most)
          run_case(context, {n_tokens, share, bench::Spread::kEven, near}, ceiling);
    for (const int64_t n_tokens : {8192, 32768})
      if (least <= n_tokens && n_tokens <= most)
        run_case(context, {n_tokens, 0.25, bench::Spread::kSkewed, near}, ceiling);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
