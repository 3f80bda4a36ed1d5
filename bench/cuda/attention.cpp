// Times selection and attention on representatives against dense attention, on one device, at
// planted redundancy: medians of device events, and beside each speed-up the ratio of operations.
//
//   sluice_cuda_attention_bench [most tokens [least tokens [file]]]
//
// file: what sdpa.py wrote in the same session; the best dense attention is then the fastest of
// PyTorch's and ours.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "attention_inputs.h"
#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/linear.h"

namespace {

using namespace sluice::impl;
using namespace sluice::impl::bench;

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
  const auto cache = [&](size_t turn) {
    const Tensor& rows = caches[turn % caches.size()].view;
    const auto of = [&](int64_t first) {
      return Tensor(rows.row<BFloat16>(first), DType::kBF16, {1, n_heads, n, d}, Device::kCuda);
    };
    return KvView{of(0), of(n)};
  };
  DenseTimes times;
  times.store = time_runs(*in.context, [&](size_t turn) {
    const auto& set = in.at(turn);
    cuda::store_kv(*in.context, {.keys = in.part(set, 1),
                                 .values = in.part(set, 2),
                                 .n_tokens = n,
                                 .first_position = 0,
                                 .cache = cache(turn)});
  });
  times.attend = time_runs(*in.context, [&](size_t turn) {
    const auto& set = in.at(turn);
    cuda::attend_dense(*in.context, {.queries = in.part(set, 0),
                                     .cache = cache(turn),
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
    reps.push_back(cuda::make_cuda_reps_attention(in.context, {.n_heads = in.shape.n_heads(),
                                                               .n_kv_heads = in.shape.n_heads(),
                                                               .head_dim = in.shape.head_dim,
                                                               .dtype = DType::kBF16,
                                                               .scale = in.shape.scale()}));
  CopyTimes times;
  times.attend = time_runs(*in.context, [&](size_t turn) {
    const auto& set = in.at(turn);
    RepsAttention& attention = *reps[turn % reps.size()];
    attention.reset();
    attention.attend({.queries = in.part(set, 0).rows_from(0, n_rows),
                      .keys = in.part(set, 1).rows_from(0, n_rows),
                      .values = in.part(set, 2).rows_from(0, n_rows),
                      .set = &chosen,
                      .first_token = 0,
                      .out = in.out(set).rows_from(0, n_rows)});
  });
  cuda::Multiplier multiplier(in.context);
  const cuda::DeviceBias none;
  const cuda::DeviceMatrix qkv(in.context, DType::kBF16, 3 * kModel, kModel);
  const cuda::DeviceMatrix out(in.context, DType::kBF16, kModel, kModel);
  fill_normal(*in.context, qkv.rows, 21);
  fill_normal(*in.context, out.rows, 22);
  const auto project = [&](size_t turn, int64_t rows) {
    const auto& set = in.at(turn);
    multiplier.run(qkv, none,
                   {.weights = nullptr,
                    .x = set.rows.view.rows_from(0, rows),
                    .out = set.qkv.view.rows_from(0, rows)});
    multiplier.run(out, none,
                   {.weights = nullptr,
                    .x = set.rows.view.rows_from(0, rows),
                    .out = set.out.view.rows_from(0, rows)});
  };
  times.projections = time_runs(*in.context, [&](size_t turn) { project(turn, n_rows); });
  times.all_projections = time_runs(*in.context, [&](size_t turn) { project(turn, n); });
  return times;
}

// The most memory in use since the last call, in MB.
double peak_memory() {
  cudaMemPool_t pool = nullptr;
  cuda::check(cudaDeviceGetDefaultMemPool(&pool, 0), "memory pool");
  uint64_t high = 0, zero = 0;
  cuda::check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high), "memory pool");
  cuda::check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero), "memory pool");
  return static_cast<double>(high) * 1e-6;
}

// PyTorch's best, in ms; 0 where it is not known.
double best_elsewhere(const std::string& file, const Case& shape) {
  std::ifstream lines(file);
  double best = 0, ms = 0;
  int64_t n_tokens = 0, n_heads = 0, head_dim = 0;
  std::string name;
  while (lines >> n_tokens >> n_heads >> head_dim >> ms >> name)
    if (n_tokens == shape.n_tokens && n_heads == shape.n_heads() && head_dim == shape.head_dim &&
        (best == 0 || ms < best))
      best = ms;
  return best;
}

long long printed(int64_t n) { return static_cast<long long>(n); }

void run_case(const std::shared_ptr<Context>& context, const Case& shape, const std::string& file,
              const Near& near) {
  Inputs in(context, shape);
  context->synchronize();
  peak_memory();
  const double before = peak_memory();  // what is in use now
  const Timing select = in.time_select();
  for (size_t i = 0; i < in.sets.size(); ++i) in.norm_and_select(i);
  const Timing far = time_runs(*context, [&](size_t turn) { in.attend_keys(turn); });
  const Timing reused =
      time_runs(*context, [&](size_t turn) { in.attend_keys(turn, *in.sets[0].selector); });
  const double memory = peak_memory() - before;
  for (size_t i = 0; i < in.sets.size(); ++i) in.attend_keys(i);
  const CacheBytes cache = in.sets[0].keys->bytes();
  const Timing step = time_runs(*context, [&](size_t turn) { in.step(turn); });
  const DenseTimes dense = time_dense(in);
  const TokenSet& set = in.sets[0].selector->sets()[0];
  const CopyTimes copy = time_copy(in, set);
  const auto t = static_cast<double>(shape.n_tokens), r = static_cast<double>(set.n_clusters);
  const double multiplied = 2.0 * kModel * static_cast<double>(in.sets[0].selector->products());
  in.move_to(near);
  const Timing joint = in.time_select();

  const double elsewhere = best_elsewhere(file, shape), ours = dense.attend.median;
  const double best = elsewhere > 0 ? std::min(elsewhere, ours) : ours;
  const double dense_flops = 2.0 * kModel * t * t, far_flops = keys_flops(shape.n_tokens, r);
  const double select_flops = kModel * t * r, copy_flops = 2.0 * kModel * r * r;
  const double row_flops = 2.0 * 4 * kModel * kModel;  // of projecting one
  const auto rate = [](double flops, const Timing& timing) { return flops / timing.median * 1e-9; };
  const double validated = select.median + far.median;
  const double with_all = best + dense.store.median + copy.all_projections.median;
  const double with_few = select.median + copy.attend.median + copy.projections.median;
  std::printf("| %5lld | %2lld x %3lld | %.3f%s | %7.3f | %7.3f (%3.0f) | %6.3f ",
              printed(shape.n_tokens), printed(shape.n_heads()), printed(shape.head_dim), r / t,
              shape.spread == Spread::kSkewed ? " skewed" : "", elsewhere, ours,
              rate(dense_flops, dense.attend), dense.store.median);
  std::printf("| %7.3f (%3.0f, %3.0f) | %7.3f (%3.0f) | %7.3f (%3.0f) ", select.median,
              rate(multiplied, select), rate(select_flops, select), far.median,
              rate(far_flops, far), reused.median, rate(far_flops, reused));
  std::printf("| %5.2f [%5.2f] | %5.2f | %5.2f [%5.2f] ", best / validated,
              dense_flops / (select_flops + far_flops), best / (joint.median + far.median),
              best / reused.median, dense_flops / far_flops);
  std::printf("| %7.3f (%3.0f) | %7.3f | %7.3f | %5.2f [%5.2f] ", copy.attend.median,
              rate(copy_flops, copy.attend), copy.projections.median, copy.all_projections.median,
              with_all / with_few,
              (dense_flops + row_flops * t) / (select_flops + copy_flops + row_flops * r));
  std::printf("| %6.1f | %6.0f | %5.0f of %5.0f | %.2f |\n", 1e3 * step.median, memory,
              static_cast<double>(cache.exact + cache.clusters) * 1e-6, 4.0 * kModel * t * 1e-6,
              std::max({dense.attend.spread, select.spread, far.spread, reused.spread,
                        copy.attend.spread}));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t most = argc > 1 ? std::stoll(argv[1]) : 32768;
    const int64_t least = argc > 2 ? std::stoll(argv[2]) : 0;
    const std::string file = argc > 3 ? argv[3] : "";
    const auto context = std::make_shared<Context>(0);
    const Near near{random_basis(256, kModel), 0.2f};
    std::printf(
        "%s\n\nms (TFLOP/s); a step of decoding in us; MB. Rates of select: of products done, and "
        "of T r d; its time is that of the norm before, with sums of squares for it, and of "
        "selection, less that of the norm without.\nSpeed-ups against the best dense attention, in "
        "brackets the ratio of "
        "operations; subspace: other rows, near a basis of %d (%.1f of a row's norm is outside "
        "it), selected in it; copy: with projections on both sides, and the cache's store on the "
        "dense one.\n\n",
        context->description().c_str(), static_cast<int>(near.basis->rank()),
        static_cast<double>(near.rest));
    std::printf(
        "| T | heads | r/T | PyTorch | dense | store | select | keys | keys, set reused | "
        "validated | subspace | reused | reps | project r | project T | copy | step | memory of "
        "passes | "
        "cache | spread "
        "|\n");
    for (int column = 0; column < 20; ++column) std::printf("| --- ");
    std::printf("|\n");
    for (const int64_t head_dim : {128, 256})
      for (const int64_t n : {512, 2048, 8192, 32768})
        for (const double share : {0.25, 0.1})
          if (least <= n && n <= most) run_case(context, {n, head_dim, share}, file, near);
    for (const int64_t n : {8192, 32768})
      if (least <= n && n <= most) run_case(context, {n, 128, 0.25, Spread::kSkewed}, file, near);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
