// Selection and attention on representatives against dense attention, at planted redundancy, in a
// layer of width 4096. Each speed-up is printed with the ratio of operations.
//
// Keys: "shapes": [{"head_dim": [], "n_tokens": [], "redundancy": [], "skewed": true (a few
// representatives own most tokens)}], "rank" of the basis of the column "subspace" and "rest", the
// share of a row's norm outside it, "pytorch": the file that sdpa.py wrote in the same session; the
// best dense attention is then the fastest of PyTorch's and ours.

#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/linear.h"
#include "cuda/attention_inputs.h"
#include "cuda/case.h"
#include "cuda/memory.h"
#include "cuda/pytorch.h"

namespace sluice::impl::bench {
namespace {

// Operations, a multiplication and an addition counting as two.
double keys_flops(int64_t n_tokens, double n_reps) {
  double keys = 0;
  for (int64_t t = 0; t < n_tokens; ++t) {
    const int64_t border = near_border(t, kWindow, kBlock);
    keys += static_cast<double>(border) * n_reps / static_cast<double>(n_tokens) +
            static_cast<double>(t - border + 1);
  }
  return 4.0 * kModel * keys;
}

// Dense attention over a cache, and what storing keys and values in it takes.
struct DenseTimes {
  Timing attend, store;
};
DenseTimes time_dense(Inputs& in) {
  const int64_t n = in.shape.n_tokens, n_heads = in.shape.n_heads(), d = in.shape.head_dim;
  std::vector<Rows> caches;
  for (size_t i = 0; i < in.sets.size(); ++i) caches.emplace_back(in.context, 2 * n, kModel);
  const auto cache = [&](size_t round) {
    const Tensor& rows = caches[round % caches.size()].view;
    const auto of = [&](int64_t first) {
      return Tensor(rows.row<BFloat16>(first), DType::kBF16, {1, n_heads, n, d}, Device::kCuda);
    };
    return KvView{of(0), of(n)};
  };
  DenseTimes times;
  times.store = in.time([&](size_t round) {
    const auto& set = in.at(round);
    cuda::elementwise::store_kv(*in.context, {.keys = in.part(set, 1),
                                              .values = in.part(set, 2),
                                              .n_tokens = n,
                                              .first_position = 0,
                                              .cache = cache(round)});
  });
  times.attend = in.time([&](size_t round) {
    const auto& set = in.at(round);
    cuda::dense::attend_dense(*in.context, {.queries = in.part(set, 0),
                                            .cache = cache(round),
                                            .n_tokens = n,
                                            .first_position = 0,
                                            .causal = true,
                                            .scale = in.shape.scale(),
                                            .out = in.out(set)});
  });
  return times;
}

// Attention among representatives alone, and the projections of so many rows: q, k and v, and out.
struct CopyTimes {
  Timing attend, projections, all_projections;
};
CopyTimes time_copy(Inputs& in, const TokenSet& chosen) {
  const int64_t n = in.shape.n_tokens, n_rows = chosen.n_clusters;
  std::vector<std::unique_ptr<RepsAttention>> reps;
  for (size_t i = 0; i < in.sets.size(); ++i)
    reps.push_back(cuda::copy::make_reps_attention(in.context, {.n_heads = in.shape.n_heads(),
                                                                .n_kv_heads = in.shape.n_heads(),
                                                                .head_dim = in.shape.head_dim,
                                                                .dtype = DType::kBF16,
                                                                .scale = in.shape.scale()}));
  CopyTimes times;
  times.attend = in.time([&](size_t round) {
    const auto& set = in.at(round);
    RepsAttention& attention = *reps[round % reps.size()];
    attention.reset();
    attention.attend({.queries = in.part(set, 0).rows_from(0, n_rows),
                      .keys = in.part(set, 1).rows_from(0, n_rows),
                      .values = in.part(set, 2).rows_from(0, n_rows),
                      .set = &chosen,
                      .first_token = 0,
                      .out = in.out(set).rows_from(0, n_rows)});
  });
  cuda::linear::Multiplier multiplier(in.context);
  const cuda::linear::DeviceBias none;
  const cuda::linear::DeviceMatrix qkv(in.context, DType::kBF16, 3 * kModel, kModel);
  const cuda::linear::DeviceMatrix out(in.context, DType::kBF16, kModel, kModel);
  fill_normal(*in.context, qkv.rows, 21);
  fill_normal(*in.context, out.rows, 22);
  const auto project = [&](size_t round, int64_t rows) {
    const auto& set = in.at(round);
    multiplier.run(qkv, none,
                   {.weights = nullptr,
                    .x = set.rows.view.rows_from(0, rows),
                    .out = set.qkv.view.rows_from(0, rows)});
    multiplier.run(out, none,
                   {.weights = nullptr,
                    .x = set.rows.view.rows_from(0, rows),
                    .out = set.out.view.rows_from(0, rows)});
  };
  times.projections = in.time([&](size_t round) { project(round, n_rows); });
  times.all_projections = in.time([&](size_t round) { project(round, n); });
  return times;
}

struct Measured {
  Timing select, keys, reused,
      step;      // attention alone, with a set of its own or of the layer before
  Timing joint;  // selection in a basis, on other rows
  DenseTimes dense;
  CopyTimes copy;
  double memory;  // bytes
  CacheBytes cache;
  double n_reps, products;
};
Measured measure(Inputs& in, const Near& near) {
  Measured m{};
  in.context->synchronize();
  pool_memory();
  const double before = pool_memory().used;  // what is in use now
  m.select = in.time_select();
  for (size_t i = 0; i < in.sets.size(); ++i) in.norm_and_select(i);
  m.keys = in.time([&](size_t round) { in.attend_keys(round); });
  m.reused = in.time([&](size_t round) { in.attend_keys(round, *in.sets[0].selector); });
  m.memory = pool_memory().used - before;
  for (size_t i = 0; i < in.sets.size(); ++i) in.attend_keys(i);
  m.cache = in.sets[0].keys->bytes();
  m.step = in.time([&](size_t round) { in.step(round); });
  m.dense = time_dense(in);
  const TokenSet& set = in.sets[0].selector->sets()[0];
  m.copy = time_copy(in, set);
  m.n_reps = static_cast<double>(set.n_clusters);
  m.products = static_cast<double>(in.sets[0].selector->products());
  in.move_to(near);
  m.joint = in.time_select();
  return m;
}

// Operations of a shape, and speed-ups against the best dense attention.
struct Derived {
  Derived(const AttentionShape& shape, const Measured& m, std::optional<double> elsewhere)
      : t(static_cast<double>(shape.n_tokens)),
        r(m.n_reps),
        best(std::min(elsewhere.value_or(HUGE_VAL), m.dense.attend.median)),
        dense_flops(2.0 * kModel * t * t),
        keys_flops_(keys_flops(shape.n_tokens, r)),
        select_flops(kModel * t * r),
        copy_flops(2.0 * kModel * r * r),
        validated(m.select + m.keys),
        in_basis(m.joint + m.keys),
        copied(m.select + m.copy.attend + m.copy.projections) {
    const double row_flops = 2.0 * 4 * kModel * kModel;  // of projecting one
    dense_and_projections = best + m.dense.store.median + m.copy.all_projections.median;
    validated_operations = dense_flops / (select_flops + keys_flops_);
    reused_operations = dense_flops / keys_flops_;
    copy_operations = (dense_flops + row_flops * t) / (select_flops + copy_flops + row_flops * r);
  }
  double t, r, best;  // best: ms
  double dense_flops, keys_flops_, select_flops, copy_flops;
  Timing validated, in_basis, copied;
  double dense_and_projections;  // ms, with the cache's store
  double validated_operations, reused_operations, copy_operations;
};

double tflops(double flops, const Timing& timing) { return flops / timing.median * 1e-9; }
std::string timed(const Timing& timing, double flops) {
  return fmt::format("{:.3f} ({:.0f})", timing.median, tflops(flops, timing));
}
std::string ratios(double measured, double operations) {
  return fmt::format("{:.2f} [{:.2f}]", measured, operations);
}

void print_row(Table& table, const AttentionShape& shape, const Measured& m, const Derived& d,
               const std::optional<double>& elsewhere) {
  const double multiplied = 2.0 * kModel * m.products;
  table.row(
      {fmt::format("{}", shape.n_tokens),
       fmt::format("{} x {}", shape.n_heads(), shape.head_dim),
       fmt::format("{:.3f}{}", d.r / d.t, shape.spread == Spread::kSkewed ? " skewed" : ""),
       milliseconds_cell(elsewhere),
       timed(m.dense.attend, d.dense_flops),
       fmt::format("{:.3f}", m.dense.store.median),
       fmt::format("{:.3f} ({:.0f}, {:.0f})", m.select.median, tflops(multiplied, m.select),
                   tflops(d.select_flops, m.select)),
       timed(m.keys, d.keys_flops_),
       timed(m.reused, d.keys_flops_),
       ratios(d.best / d.validated.median, d.validated_operations),
       fmt::format("{:.2f}", d.best / d.in_basis.median),
       ratios(d.best / m.reused.median, d.reused_operations),
       timed(m.copy.attend, d.copy_flops),
       fmt::format("{:.3f}", m.copy.projections.median),
       fmt::format("{:.3f}", m.copy.all_projections.median),
       ratios(d.dense_and_projections / d.copied.median, d.copy_operations),
       fmt::format("{:.1f}", 1e3 * m.step.median),
       fmt::format("{:.0f}", 1e-6 * m.memory),
       fmt::format("{:.0f} of {:.0f}", static_cast<double>(m.cache.exact + m.cache.clusters) * 1e-6,
                   4.0 * kModel * d.t * 1e-6),
       fmt::format("{:.2f}", std::max({m.dense.attend.spread, m.select.spread, m.keys.spread,
                                       m.reused.spread, m.copy.attend.spread}))});
}

void record(CudaCase& c, const AttentionShape& shape, const Measured& m, const Derived& d,
            const std::optional<double>& elsewhere) {
  const auto add = [&](const char* mode, const Timing& timing, nlohmann::json more) {
    more.update({{"n_tokens", shape.n_tokens},
                 {"d_model", kModel},
                 {"head_dim", shape.head_dim},
                 {"n_reps", static_cast<int64_t>(d.r)},
                 {"skewed", shape.spread == Spread::kSkewed}});
    if (!more.contains("tokens_per_s")) more["tokens_per_s"] = 1e3 * d.t / timing.median;
    c.record(fmt::format("T{} {}x{} r{:.0f}", shape.n_tokens, shape.n_heads(), shape.head_dim, d.r),
             mode, timing, std::move(more));
  };
  const auto rate = [](double flops, const Timing& timing) {
    return nlohmann::json{{"gflops", 1e3 * tflops(flops, timing)}};
  };
  const auto against = [&](double dense_ms, const Timing& timing, double operations) {
    return nlohmann::json{{"speedup_vs_dense", dense_ms / timing.median},
                          {"operations_ratio", operations}};
  };
  nlohmann::json dense = rate(d.dense_flops, m.dense.attend);
  if (elsewhere) dense["pytorch_ms"] = *elsewhere;
  add("dense", m.dense.attend, dense);
  add("store", m.dense.store, {});
  add("select", m.select, rate(2.0 * kModel * m.products, m.select));
  add("select, joint", m.joint, {});
  add("keys, validated", d.validated, against(d.best, d.validated, d.validated_operations));
  add("keys, validated, joint", d.in_basis, against(d.best, d.in_basis, d.validated_operations));
  add("keys, reused", m.reused, against(d.best, m.reused, d.reused_operations));
  add("copy, with projections", d.copied,
      against(d.dense_and_projections, d.copied, d.copy_operations));
  add("copy, attention alone", m.copy.attend, rate(d.copy_flops, m.copy.attend));
  add("keys, step", m.step, {{"tokens_per_s", 1e3 / m.step.median}});
}

void run_shape(CudaCase& c, const AttentionShape& shape, const Near& near,
               const PyTorchTimes& pytorch) {
  Inputs in(c.context(), shape, c.rounds(11));
  const Measured m = measure(in, near);
  const auto elsewhere = pytorch.best(shape.n_tokens, shape.n_heads(), shape.head_dim);
  const Derived d(shape, m, elsewhere);
  print_row(c.table(), shape, m, d, elsewhere);
  record(c, shape, m, d, elsewhere);
}

}  // namespace

void run_attention(CudaCase& c) {
  const int64_t rank = c.keys().require_int("rank", 1, kModel);
  const Near near{random_basis(rank, kModel),
                  static_cast<float>(c.keys().require_float("rest", 0, 1))};
  const PyTorchTimes pytorch(c);
  c.table().say(fmt::format(
      "ms (TFLOP/s); a step of decoding in us; MB. Rates of select: of products done, and of T r "
      "d; its time is that of the norm before, with sums of squares for it, and of selection, less "
      "that of the norm without.\nSpeed-ups against the best dense attention, in brackets the "
      "ratio of operations; subspace: other rows, near a basis of {} ({:.1f} of a row's norm lies "
      "outside it), selected in it; copy: with projections on both sides, and the cache's store on "
      "the dense one.",
      rank, near.rest));
  c.table().columns({"T",         "heads",     "r/T",
                     "PyTorch",   "dense",     "store",
                     "select",    "keys",      "keys, set reused",
                     "validated", "subspace",  "reused",
                     "reps",      "project r", "project T",
                     "copy",      "step",      "memory of passes",
                     "cache",     "spread"});
  for (const ConfigReader& shapes : c.objects("shapes"))
    for (const int64_t head_dim : integers(shapes, "head_dim", 1, kModel)) {
      if (kModel % head_dim != 0) shapes.refuse("head_dim", "divisors of 4096");
      for (const int64_t n_tokens : integers(shapes, "n_tokens", 1, kMostTokens))
        for (const double share : shares(shapes, "redundancy"))
          run_shape(c,
                    {n_tokens, head_dim, share,
                     shapes.bool_or("skewed", false) ? Spread::kSkewed : Spread::kEven},
                    near, pytorch);
    }
}

}  // namespace sluice::impl::bench
