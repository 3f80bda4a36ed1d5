// One shape of attention as the benchmark runs it, and how runs are timed.

#pragma once

#include <cmath>
#include <functional>

#include "backend/backend.h"
#include "backend/cuda/attention/copy/copy.h"
#include "backend/cuda/attention/keys/keys.h"
#include "backend/cuda/selection/selection.h"
#include "cuda/plant.h"
#include "cuda/stopwatch.h"

namespace sluice::impl::bench {

using cuda::Context;

constexpr int64_t kModel = 4096, kWindow = 128, kBlock = 128;

// The time of run(round) in `rounds` samples, or by how much it exceeds that of `less`; the two are
// timed alternately. Short runs are timed several at once, so that launch latency is not measured.
using Run = std::function<void(size_t)>;
Timing time_runs(Context& context, int rounds, const Run& run, const Run& less = {});

// bf16 rows that live on the device.
struct Rows {
  Rows(const std::shared_ptr<Context>& context, int64_t n, int64_t width)
      : memory(context, n * width * 2),
        view(memory.data(), DType::kBF16, {n, width}, Device::kCuda) {}
  Tensor heads(int64_t first, int64_t n_heads, int64_t head_dim) const {
    return Tensor(view.bytes() + 2 * first, DType::kBF16, {view.rows(), n_heads, head_dim},
                  Device::kCuda)
        .with_row_stride(view.row_stride());
  }
  cuda::DeviceArray<std::byte> memory;
  Tensor view;
};

struct AttentionShape {
  int64_t n_tokens, head_dim;
  double share;  // of representatives
  Spread spread = Spread::kEven;
  int64_t n_heads() const { return kModel / head_dim; }
  float scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))); }
};

// What the runs of one shape read and write. Consecutive runs use different sets: one set could
// stay in the L2 cache, and a run would wait for the one before.
struct Inputs {
  struct Set {
    Rows rows, qkv, out;
    cuda::DeviceArray<float> residual_memory, squares_memory;
    Tensor residual, squares;  // the stream, whose norm the rows are; what that norm hands on
    std::vector<uint8_t> inherited;
    std::unique_ptr<Selector> selector;
    std::unique_ptr<KeysAttention> keys;
  };

  Inputs(const std::shared_ptr<Context>& device, const AttentionShape& of, int n_samples);
  void plant(Set& set, const Near& near = {});
  // Other rows, near a basis, and selection in it.
  void move_to(const Near& near);

  Set& at(size_t round) { return sets[round % sets.size()]; }
  Tensor part(const Set& set, int64_t i) const {
    return set.qkv.heads(i * kModel, shape.n_heads(), shape.head_dim);
  }
  Tensor out(const Set& set) const { return set.out.heads(0, shape.n_heads(), shape.head_dim); }

  // Attention's norm, as dense attention has it, too; or for selection.
  void norm(const Set& set, const Tensor& squares) const;
  void norm(size_t round) { norm(at(round), {}); }
  void norm_and_select(size_t round) {
    Set& set = at(round);
    norm(set, set.squares);
    set.selector->reset();
    set.selector->extend({.rows = set.rows.view,
                          .residual = set.residual,
                          .inherited = {set.inherited},
                          .row_squares = squares_of_out(set.squares),
                          .residual_squares = squares_of_x(set.squares)});
  }
  Timing time(const Run& run) const { return time_runs(*context, rounds, run); }
  Timing time_select() {
    return time_runs(
        *context, rounds, [&](size_t round) { norm_and_select(round); },
        [&](size_t round) { norm(round); });
  }
  // By the sets of `chooser`. What a layer finds out about them serves the next one as well, if
  // that goes by the same.
  void attend_keys(size_t round, const Selector& chooser) {
    Set& set = at(round);
    set.keys->reset();
    set.keys->attend({.queries = part(set, 0),
                      .keys = part(set, 1),
                      .values = part(set, 2),
                      .sets = chooser,
                      .out = out(set)});
  }
  void attend_keys(size_t round) { attend_keys(round, *at(round).selector); }
  // A token that follows. The border stays where it is, so the sets need not go on.
  void step(size_t round) {
    Set& set = at(round);
    set.keys->attend({.queries = part(set, 0).rows_from(0, 1),
                      .keys = part(set, 1).rows_from(0, 1),
                      .values = part(set, 2).rows_from(0, 1),
                      .sets = *set.selector,
                      .out = out(set).rows_from(0, 1)});
  }

  std::shared_ptr<Context> context;
  AttentionShape shape;
  int rounds;                       // samples of each time
  cuda::DeviceArray<float> weight;  // of attention's norm: ones
  SelectorSpec spec;
  std::vector<Set> sets;
};

}  // namespace sluice::impl::bench
