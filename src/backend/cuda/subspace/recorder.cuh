// The block of a gate that multiplies nothing: it receives the same messages as the others, records
// what became of the row, and decides where they cannot tell by themselves.

#pragma once

#include "backend/cuda/subspace/project.cuh"

namespace sluice::impl::cuda::subspace {

// What a gate keeps from row to row.
struct GateLog {
  BypassLimits limits;
  Bypass* state;
  uint32_t* n_rows;
  GateEntry* entries;
  RowsView coordinates;
};

// By one thread.
__device__ inline void write_down(const GateLog& log, Bypass state, uint32_t row,
                                  const GateEntry& entry) {
  log.entries[(row - 1) % RowGate::kRoom] = entry;
  if (entry.passed_by)
    state.skip(1);
  else
    state.decide(entry.fast, log.limits);
  *log.state = state;
  *log.n_rows = row;
}

__device__ inline void add_terms(Terms terms, Terms* warps) {
  add_lanes(terms.explained);
  add_lanes(terms.inside);
  add_lanes(terms.all);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = terms;
}
__device__ inline Estimate estimate(const Terms* warps) {
  Terms sum{};
  for (int w = 0; w < kGateWarps; ++w) {
    sum.explained += warps[w].explained;
    sum.inside += warps[w].inside;
    sum.all += warps[w].all;
  }
  return {sum.all, sum.all - sum.explained, sum.inside};
}

// Where the excess leaves it open. settles: whether all of E is in found.rest.
__device__ inline RowPath decide(const Gauge& gauge, const ProjectedRow& row,
                                 const std::byte* coordinates, Estimate& found, bool& settles,
                                 double* shared) {
  RowPath path = first_path(gauge, found);
  settles = path == kOpen;
  if (!settles) return path;
  found.rest += overlap(gauge.overlaps, coordinates, row.vectors.n_out, shared);
  path = path_of(gauge, found, gauge.rounding * found.inside + kRoundOff * found.all);
  if (path != kOpen) return path;
  found.rest = explicit_rest(row.vectors, row.x, coordinates, shared);
  return missed_share(found.all, found.rest) <= gauge.epsilon ? kFast : kSlow;
}

// is_near: whether all can tell so.
__device__ __noinline__ inline void record_row(const GateLog& log, const Gauge& gauge,
                                               const ProjectedRow& row, Exchange exchange,
                                               Bypass state, bool is_near,
                                               const std::byte* coordinates, const Terms* warps) {
  __shared__ double shared[kGateWarps];
  Estimate found = estimate(warps);
  bool settles = false;
  const RowPath path = is_near ? kFast : decide(gauge, row, coordinates, found, settles, shared);
  if (!is_near && threadIdx.x == 0) exchange.tell(exchange.path(), static_cast<uint32_t>(path), 0);
  const int64_t place = (exchange.row - 1) % RowGate::kRoom;
  auto* to = reinterpret_cast<uint4*>(log.coordinates.data + 2 * place * log.coordinates.stride);
  for (int64_t i = threadIdx.x; i < log.coordinates.stride / 8; i += kGateThreads)
    to[i] = reinterpret_cast<const uint4*>(coordinates)[i];
  if (threadIdx.x == 0)
    write_down(log, state, exchange.row,
               {.all = found.all,
                .rest = found.rest,
                .fast = path == kFast,
                .passed_by = false,
                .settled = settles});
}

// Of a row that nobody looks at.
__device__ __noinline__ inline void pass_by(const GateLog& log, Exchange exchange, Bypass state) {
  for (int i = static_cast<int>(threadIdx.x); i < exchange.n_pairs + exchange.n_norms;
       i += kGateThreads)
    exchange.receive(i);
  __syncthreads();
  if (threadIdx.x == 0)
    write_down(log, state, exchange.row,
               {.all = 0, .rest = 0, .fast = false, .passed_by = true, .settled = true});
}

}  // namespace sluice::impl::cuda::subspace
