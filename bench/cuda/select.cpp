// The selection of a layer of width 4096 at planted redundancy, and the rate of a large matrix
// product in the same run. The rate counts the products that the method needs: a token with
// the representatives before it, T r d operations. Also times the selection of one more token, as
// in decoding.
//
// Rows are what attention's norm makes of the residual stream, as in a model. For selection it
// hands on sums of squares, which it need not do otherwise, so the time of selection is that of
// both, less that of a norm that does not.
//
// Keys: "shapes": [{"n_tokens": [], "redundancy": [], "skewed": true (a few representatives own
// most tokens)}], "rank" and "rest" of the last column: rows near a basis, selected in it; rest is
// the share of a row's norm outside it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/selection/selection.h"
#include "cuda/case.h"
#include "cuda/plant.h"

namespace sluice::impl::bench {
namespace {

using cuda::Context;

constexpr int64_t kModel = 4096, kLayers = 4;  // selectors, used cyclically
constexpr int kUsualRounds = 11, kWarmUps = 2;
constexpr int64_t kMore = 64;  // tokens behind the others, at a time

using Run = std::function<void(int)>;

struct Rounds {
  int rounds, n;
};
// Of one of n runs between two events, or by how much they exceed those of `less`; the two are
// timed alternately. As many samples as rounds.
Timing time_runs(Context& context, const Rounds& count, const std::function<void()>& before,
                 const Run& run, const Run& less = {}) {
  Stopwatch watch(context);
  const int n = count.n;
  const auto time_of = [&](const Run& work, int times) {
    context.synchronize();
    return watch.milliseconds([&] {
      for (int i = 0; i < times * n; ++i) work(i % n);
    }) / (times * n);
  };
  std::vector<double> times;
  for (int round = -kWarmUps; round < count.rounds; ++round) {
    before();
    const double without = less ? time_of(less, kOfLess) : 0, ms = time_of(run, 1);
    if (round >= 0) times.push_back(ms - without);
  }
  return middle(times);
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
  const cuda::linear::DeviceMatrix weights(context, DType::kBF16, kSide, kModel);
  const Rows x(context, DType::kBF16, kSide, kModel), out(context, DType::kBF16, kSide, kSide);
  fill_normal(*context, weights.rows, 5);
  fill_normal(*context, x.view, 6);
  cuda::linear::Multiplier multiplier(context);
  const Timing t = time_runs(
      *context, {kUsualRounds, 10}, [] {},
      [&](int) {
        multiplier.run(weights, {}, {.weights = nullptr, .x = x.view, .out = out.view});
      });
  return 2.0 * kSide * kSide * kModel / t.median * 1e-9;
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
    cuda::elementwise::norm(
        *context, {.kind = NormKind::kRms,
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

void run_norm(CudaCase& c, int64_t n_tokens) {
  const Stream stream(c.context(), n_tokens);
  fill_normal(*c.context(), stream.rows.view, 7);
  cuda::elementwise::convert(*c.context(), stream.rows.view, stream.residual.view);
  const Run without = [&](int) { stream.norm(false); },
            with_squares = [&](int) { stream.norm(true); };
  const Rounds count = {c.rounds(kUsualRounds), kOfLess * static_cast<int>(kLayers)};
  const Timing plain = time_runs(
      *c.context(), count, [] {}, without);
  const Timing more = time_runs(
      *c.context(), count, [] {}, with_squares, without);
  const Timing squares = plain + more;
  c.table().say(fmt::format("the norm of {} rows: {:.1f} us, with sums of squares {:.1f} us",
                            n_tokens, 1e3 * plain.median, 1e3 * squares.median));
  const std::string what = fmt::format("T{}", n_tokens);
  c.record(what, "norm", plain, {{"n_tokens", n_tokens}, {"d_model", kModel}});
  c.record(what, "norm, with sums of squares", squares,
           {{"n_tokens", n_tokens}, {"d_model", kModel}});
}

struct PlantedShape {
  int64_t n_tokens;
  double share;
  Spread spread;
};

// Planted rows, and the set of the layer before, on the device as it would be, with at least `more`
// tokens behind the others.
struct Planted : Stream {
  Planted(const std::shared_ptr<Context>& on, const PlantedShape& shape, const Near& near,
          int64_t more)
      : Stream(on, shape.n_tokens) {
    const auto n_reps =
        static_cast<int64_t>(std::llround(shape.share * static_cast<double>(shape.n_tokens)));
    const auto flags = plant_rows(*context, rows.view, n_reps, shape.spread, near);
    cuda::elementwise::convert(*context, rows.view, residual.view);
    norm(false);
    SelectorSpec spec;
    spec.taus = {kPlantedTau};
    spec.d_model = kModel;
    spec.rule = SelectRule::kFixed;
    above = cuda::selection::make_selector(context, spec);
    above->extend({.rows = rows.view, .residual = rows.view, .inherited = {flags}});
    const std::vector<uint8_t> none(kMore, 0);
    const ConstTensor next = rows.view.rows_from(shape.n_tokens - kMore, kMore);
    for (int64_t behind = 0; behind < more; behind += kMore)
      above->extend({.rows = next, .residual = next, .inherited = {none}});
  }
  std::unique_ptr<Selector> above;
};

struct Timed {
  Timing all, one;  // of all tokens, of one more
  double r;
  int64_t products, dropped;
};

Timed time_selection(const Planted& planted, const SelectorSpec& spec, int rounds) {
  const std::shared_ptr<Context>& context = planted.context;
  std::vector<std::unique_ptr<Selector>> selectors;
  for (int64_t i = 0; i < kLayers; ++i)
    selectors.push_back(cuda::selection::make_selector(context, spec));
  SelectArgs args{.rows = planted.rows.view,
                  .residual = planted.residual.view,
                  .inherited = {},
                  .row_squares = squares_of_out(planted.squares.view),
                  .residual_squares = squares_of_x(planted.squares.view)};
  if (inherits(spec.rule)) args.inherited.emplace_back(*planted.above, 0);
  Timed timed{};
  timed.all = time_runs(
      *context, {rounds, kLayers},
      [&] {
        for (const auto& selector : selectors) selector->reset();
      },
      [&](int i) {
        planted.norm(true);
        selectors[static_cast<size_t>(i)]->extend(args);
      },
      [&](int) { planted.norm(false); });
  timed.r = static_cast<double>(selectors[0]->sets()[0].n_clusters);
  timed.products = selectors[0]->products();
  timed.dropped = selectors[0]->pairs_dropped();
  const int64_t last = planted.rows.view.rows() - 1;
  args.rows = planted.rows.view.rows_from(last, 1);
  args.residual = planted.residual.view.rows_from(last, 1);
  args.row_squares = args.residual_squares = {};
  timed.one = time_runs(
      *context, {rounds, kLayers}, [] {},
      [&](int i) { selectors[static_cast<size_t>(i)]->extend(args); });
  return timed;
}

class ShapeRunner {
 public:
  ShapeRunner(CudaCase& c, const PlantedShape& shape, double ceiling)
      : c_(c), shape_(shape), ceiling_(ceiling), rounds_(c.rounds(kUsualRounds)) {
    spec_.taus = {kPlantedTau};
    spec_.d_model = kModel;
    spec_.sinks = 4;
  }

  void run(const Near& near) {
    std::vector<std::string> cells = {
        fmt::format("{}{}", shape_.n_tokens, shape_.spread == Spread::kSkewed ? " skewed" : "")};
    const Planted planted(c_.context(), shape_, {}, rounds_ + kWarmUps);
    const Timed cover = select(planted, SelectRule::kCascadeCover, 0, "cascade-cover");
    const Timed exempt =
        select(planted, SelectRule::kCascadeCover, 8, "cascade-cover, outliers exempt");
    const Timed greedy = select(planted, SelectRule::kGreedy, 0, "greedy");
    cells.push_back(fmt::format("{:.3f}", cover.r / n_tokens()));
    for (const Timed* timed : {&cover, &exempt, &greedy})
      cells.push_back(fmt::format("{:.1f} us, {:.0f} ({:.0f}%), {:.2f}", 1e3 * timed->all.median,
                                  rate(*timed), 100 * rate(*timed) / ceiling_, surplus(*timed)));
    cells.push_back(fmt::format("{:.1f} us", 1e3 * exempt.one.median));
    record("cascade-cover, one token more", exempt.one, exempt.r, {});
    cells.push_back(in_basis(near));
    c_.table().row(cells);
  }

 private:
  double n_tokens() const { return static_cast<double>(shape_.n_tokens); }
  // TFLOP/s of the products that are needed; how many times as many were done.
  double rate(const Timed& timed) const {
    return kModel * n_tokens() * timed.r / timed.all.median * 1e-9;
  }
  double surplus(const Timed& timed) const {
    return static_cast<double>(timed.products) / (0.5 * n_tokens() * timed.r);
  }

  Timed select(const Planted& planted, SelectRule rule, double outlier_ratio, const char* mode) {
    spec_.rule = rule;
    spec_.outlier_ratio = outlier_ratio;
    Timed timed = time_selection(planted, spec_, rounds_);
    record(mode, timed.all, timed.r,
           {{"gflops", 1e3 * rate(timed)},
            {"products_ratio", surplus(timed)},
            {"baseline", "matrix product"},
            {"baseline_gflops", 1e3 * ceiling_},
            {"share_of_baseline", rate(timed) / ceiling_},
            {"tokens_per_s", 1e3 * n_tokens() / timed.all.median}});
    return timed;
  }

  // A cell: rows near a basis, outliers exempt.
  std::string in_basis(const Near& near) {
    const Planted planted(c_.context(), shape_, near, rounds_ + kWarmUps);
    spec_.rule = SelectRule::kCascadeCover;
    spec_.outlier_ratio = 8;
    const Timed without = time_selection(planted, spec_, rounds_);
    spec_.basis = near.basis;
    const Timed within = time_selection(planted, spec_, rounds_);
    spec_.basis = nullptr;
    const double speedup = without.all.median / within.all.median;
    const double kept = static_cast<double>(within.products) /
                        static_cast<double>(within.products + within.dropped);
    record("cascade-cover, joint", within.all, within.r,
           {{"rank", near.basis->rank()},
            {"share_dropped", 1 - kept},
            {"speedup_vs_plain", speedup},
            {"tokens_per_s", 1e3 * n_tokens() / within.all.median}});
    return fmt::format("{:.1f} us, {:.2f}, {:.4f}", 1e3 * within.all.median, speedup, kept);
  }

  void record(const std::string& mode, const Timing& timing, double r, nlohmann::json more) {
    more.update({{"n_tokens", shape_.n_tokens},
                 {"d_model", kModel},
                 {"n_reps", static_cast<int64_t>(r)},
                 {"skewed", shape_.spread == Spread::kSkewed}});
    c_.record(fmt::format("T{} r{:.0f}", shape_.n_tokens, r), mode, timing, std::move(more));
  }

  CudaCase& c_;
  PlantedShape shape_;
  double ceiling_;  // TFLOP/s
  int rounds_;
  SelectorSpec spec_;
};

std::vector<PlantedShape> read_shapes(const CudaCase& c) {
  std::vector<PlantedShape> shapes;
  for (const ConfigReader& keys : c.objects("shapes"))
    for (const int64_t n_tokens : integers(keys, "n_tokens", kMore, kMostTokens))
      for (const double share : shares(keys, "redundancy"))
        shapes.push_back(
            {n_tokens, share, keys.bool_or("skewed", false) ? Spread::kSkewed : Spread::kEven});
  return shapes;
}

}  // namespace

void run_select(CudaCase& c) {
  const int64_t rank = c.keys().require_int("rank", 1, kModel);
  const Near near{random_basis(rank, kModel),
                  static_cast<float>(c.keys().require_float("rest", 0, 1))};
  const std::vector<PlantedShape> shapes = read_shapes(c);
  const double ceiling = matrix_rate(c.context());
  c.table().say(fmt::format(
      "a matrix product: {:.0f} TFLOP/s. With each time: TFLOP/s of the products that are needed "
      "(share of that), and how many times as many were done\nOf all tokens: the norm before, "
      "with sums of squares for selection, and selection, less the norm without; of one token "
      "more: selection alone\nIn a basis: rows near one ({:.2f} of a row's norm lies outside it), "
      "outliers exempt; how many times faster than without it, and the share of pairs that it does "
      "not drop\n",
      ceiling, near.rest));
  std::set<int64_t> lengths;
  for (const PlantedShape& shape : shapes) lengths.insert(shape.n_tokens);
  for (const int64_t n_tokens : lengths) run_norm(c, n_tokens);
  c.table().columns({"T", "r/T", "cascade-cover", "the same, outliers exempt", "greedy",
                     "one token more", fmt::format("in a basis of {}", rank)});
  for (const PlantedShape& shape : shapes) ShapeRunner(c, shape, ceiling).run(near);
}

}  // namespace sluice::impl::bench
