// Refined attention against dense attention: prefill and decode of one layer of 32 heads of 128,
// everything counted: clustering, deciding, attending.
//
// Keys: "rows": [{"n_tokens", "prefill_opened", "decode_opened"}], the shares of dense attention's
// keys that opened clusters have: those of a real model, which `sluice eval --attention refine`
// prints ("opened members"). Delta is searched for until the share opened is the one asked for.
// "pytorch": the file that sdpa.py wrote in the same session; prefill is compared with the fastest
// of PyTorch's attention and ours.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuda/case.h"
#include "cuda/pytorch.h"
#include "cuda/refine_layer.h"

namespace sluice::impl::bench {
namespace {

struct Row {
  int64_t n_tokens;
  double prefill_opened, decode_opened;
};

struct Measured {
  RefineLayer::DenseTimes dense;
  RefineLayer::Found prefill, decode;
  Timing prefill_time, means_time, decode_time;  // means: nothing opened
};
Measured measure(CudaCase& c, Backend& backend, const Row& row) {
  const RefineLayer layer(c.context(), backend, row.n_tokens, c.rounds(0));
  Measured m;
  m.dense = layer.time_dense();
  m.prefill = layer.find_delta(row.prefill_opened, false);
  m.prefill_time = layer.time_prefill(m.prefill.delta);
  m.means_time = layer.time_prefill(HUGE_VAL);
  m.decode = layer.find_delta(row.decode_opened, true);
  m.decode_time = layer.time_decode(m.decode.delta);
  return m;
}

void run_row(CudaCase& c, Backend& backend, const Row& row, const PyTorchTimes& pytorch) {
  const Measured m = measure(c, backend, row);
  const auto elsewhere = pytorch.best(row.n_tokens, RefineLayer::kHeads, RefineLayer::kHeadDim);
  const double dense_ms = m.dense.prefill.median, step_ms = m.dense.decode.median;
  const double best = std::min(elsewhere.value_or(HUGE_VAL), dense_ms);
  const auto ms = [](const Timing& t) { return fmt::format("{:.3f}", t.median); };
  const auto us = [](const Timing& t) { return fmt::format("{:.1f}", 1e3 * t.median); };
  c.table().row({fmt::format("{}", row.n_tokens), milliseconds_cell(elsewhere), ms(m.dense.prefill),
                 fmt::format("{:.3f}", m.prefill.share), ms(m.means_time), ms(m.prefill_time),
                 fmt::format("{:.2f}x", best / m.prefill_time.median), us(m.dense.decode),
                 fmt::format("{:.3f}", m.decode.share), us(m.decode_time),
                 fmt::format("{:.2f}x", step_ms / m.decode_time.median)});
  const auto record = [&](const char* mode, const Timing& t, double tokens, nlohmann::json more) {
    more.update({{"n_tokens", row.n_tokens}, {"tokens_per_s", 1e3 * tokens / t.median}});
    c.record(fmt::format("T{} opened {}, {}", row.n_tokens, row.prefill_opened, row.decode_opened),
             mode, t, std::move(more));
  };
  const auto n = static_cast<double>(row.n_tokens);
  nlohmann::json dense = nlohmann::json::object();
  if (elsewhere) dense["pytorch_ms"] = *elsewhere;
  record("dense", m.dense.prefill, n, dense);
  record("refine", m.prefill_time, n,
         {{"speedup_vs_dense", best / m.prefill_time.median},
          {"opened_fraction", m.prefill.share},
          {"delta", m.prefill.delta}});
  record("refine, nothing opened", m.means_time, n, {});
  record("dense, decode", m.dense.decode, 1, {});
  record("refine, decode", m.decode_time, 1,
         {{"speedup_vs_dense", step_ms / m.decode_time.median},
          {"opened_fraction", m.decode.share},
          {"delta", m.decode.delta}});
}

}  // namespace

void run_refine(CudaCase& c) {
  std::vector<Row> rows;
  for (const ConfigReader& row : c.objects("rows"))
    rows.push_back({row.require_int("n_tokens", 1, kMostTokens),
                    row.require_float("prefill_opened", 0, 1),
                    row.require_float("decode_opened", 0, 1)});
  const auto backend = make_cuda_backend(DType::kBF16);
  const PyTorchTimes pytorch(c);
  c.table().say(fmt::format(
      "Prefill in ms, a decode step in us, of one layer of {} heads of {}; opened: share of dense "
      "attention's keys; speed-ups against the best dense attention (prefill) and ours (decode).",
      RefineLayer::kHeads, RefineLayer::kHeadDim));
  c.table().columns({"T", "PyTorch", "dense", "opened", "nothing opened", "refine", "speed-up",
                     "dense step", "opened", "refine step", "speed-up"});
  for (const Row& row : rows) run_row(c, *backend, row, pytorch);
}

}  // namespace sluice::impl::bench
