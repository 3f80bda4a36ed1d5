// A gate that decides where its row is, docs/algorithm.md section 4, in one kernel: every block but
// the last multiplies two directions of V with x and sends them to the others, receives theirs,
// sums up for itself whether the row is near enough, and multiplies its rows of the output, by the
// image or else by the whole matrix. The last block is the recorder, which writes it down and
// decides where the others cannot.
//
// What is slow here is not the weights but the latency of a row through the kernel, in which every
// instruction is met once. So weights are in shared memory before the kernels ahead are done: two
// blocks fit a multiprocessor. And what is done between is as little as there can be.
//
// Blocks wait for each other, so all must be resident at one time: the launch is cooperative, and
// there is one block per multiprocessor. No kernel behind this one begins before all its blocks
// have, and those ahead of it end by themselves. As many streams of gates can share a device as
// blocks fit a multiprocessor, two on Hopper (gate_places).

#include <algorithm>

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/subspace/image.cuh"
#include "backend/cuda/subspace/project.cuh"
#include "backend/cuda/subspace/recorder.cuh"

namespace sluice::impl::cuda::subspace {
namespace {

struct GateRow {
  ProjectedRow row;
  ImageRows image;
  int n_workers;
  int n_places;  // of coordinates, in whole units
  Gauge gauge;
  GateMessage* messages;
  GateLog log;
  linear::RowOutput output;
  linear::RowWeights dense;
};

// Parts of shared memory.
struct Staged {
  uint4* directions;
  uint4* image;
  std::byte* coordinates;
};
__device__ Staged staged_in(uint4* shared, const GateRow& gate) {
  const int n_coordinates = gate.n_places / 8, n_directions = staged_width(gate.row.n_in) / 4;
  return {shared + n_coordinates, shared + n_coordinates + n_directions,
          reinterpret_cast<std::byte*>(shared)};
}

__device__ void ask_for_directions(const ProjectedRow& row, uint4* staged, uint64_t* arrived) {
  const linear::RowWeights& vectors = row.vectors;
  const int pair = static_cast<int>(blockIdx.x), n_in = min(row.n_in, kPass);
  const int n = max(0, min(2, static_cast<int>(vectors.n_out) - 2 * pair));
  const int pitch = staged_width(row.n_in) / 8;
  BlockCopy::begin(arrived, static_cast<uint32_t>(2 * n * n_in));
  for (int d = 0; d < 2; ++d) {
    if (d < n)
      BlockCopy::add(arrived, staged + d * pitch,
                     vectors.data + 2 * (2 * pair + d) * vectors.stride, 2 * n_in);
    // Each by the thread that reads it.
    const int last = pitch - kGateThreads + static_cast<int>(threadIdx.x);
    if (d >= n)
      for (int i = static_cast<int>(threadIdx.x); i < pitch; i += kGateThreads)
        staged[d * pitch + i] = make_uint4(0, 0, 0, 0);
    else if (8 * last >= n_in)
      staged[d * pitch + last] = make_uint4(0, 0, 0, 0);
  }
}
__device__ void ask_for_image(const ImageRows& rows, uint4* staged, uint64_t* arrived) {
  const int bytes = rows.staged_bytes();
  BlockCopy::begin(arrived, static_cast<uint32_t>(bytes));
  BlockCopy::add(arrived, staged, rows.image.data + 2 * rows.begin() * rows.image.stride, bytes);
}

// Parameters come through a cache that is empty when a kernel begins. Whoever first looked at one
// behind the wait would wait for it there, so all are copied ahead of that.
__device__ void copy_parameters(const GateRow& from, GateRow& to) {
  static_assert(sizeof(GateRow) % 8 == 0 && sizeof(GateRow) / 8 <= kGateThreads);
  const int i = static_cast<int>(threadIdx.x);
  if (i < static_cast<int>(sizeof(GateRow) / 8))
    reinterpret_cast<uint64_t*>(&to)[i] = reinterpret_cast<const uint64_t*>(&from)[i];
}

// That this block has seen where the sequence stands, and nothing else.
__device__ void tell_nothing(const Exchange& exchange, int n_workers) {
  for (int pair = static_cast<int>(blockIdx.x); pair < exchange.n_pairs; pair += n_workers)
    exchange.tell(pair, 0, 0);
  const int part = n_workers - 1 - static_cast<int>(blockIdx.x);
  if (part < exchange.n_norms) exchange.tell(exchange.norm(part), 0, 0);
}

__device__ RowPath receive_path(const Exchange& exchange) {
  __shared__ uint32_t received;
  if (threadIdx.x == 0) received = exchange.receive(exchange.path()).small;
  __syncthreads();
  return static_cast<RowPath>(received);
}

// Neighbours in different blocks, so that all multiprocessors read some of a small matrix. A
// function apart, as is all that few rows meet: instructions are fetched too.
__device__ __noinline__ void multiply_dense(const GateRow& gate) {
  const int64_t warp = int64_t{threadIdx.x / 32} * gate.n_workers + blockIdx.x;
  uint4 piece[linear::kPieceLoads];
  linear::read_piece<linear::kDenseRows>(gate.dense, linear::kDenseRows * warp, 0, piece);
  linear::multiply_rows<linear::kDenseRows>(gate.dense, gate.row.x, gate.output, warp,
                                            int64_t{gate.n_workers} * kGateWarps, piece);
}

__global__ void __launch_bounds__(kGateThreads, 2)
    gated_row(const __grid_constant__ GateRow parameters) {
  extern __shared__ uint4 shared[];
  __shared__ uint64_t arrived[2];  // directions and image
  __shared__ double warps[kGateWarps];
  __shared__ Terms recorder_terms[kGateWarps];
  __shared__ UnitSums sums;
  __shared__ GateRow gate;
  launch_dependents();
  copy_parameters(parameters, gate);
  BlockCopy::make(arrived);
  __syncthreads();
  const Staged staged = staged_in(shared, gate);
  const int tid = static_cast<int>(threadIdx.x);
  const bool is_recorder = static_cast<int>(blockIdx.x) == gate.n_workers;
  if (!is_recorder) {
    ask_for_directions(gate.row, staged.directions, arrived);
    ask_for_image(gate.image, staged.image, arrived + 1);
  }
  ImageProduct image(gate.image);
  int row = gate.image.begin() + tid;
  const int end = is_recorder ? 0 : gate.image.end();
  const int rank = static_cast<int>(gate.row.vectors.n_out);
  const float2 diagonal = diagonal_of(gate.gauge.diagonal, tid, rank);
  EpilogueInputs inputs{bias_of(gate.output, row, end), 0};
  __syncthreads();
  wait_on_dependency();

  uint4 x[kChunks];
  if (!is_recorder) read_x(gate.row, x);
  const Bypass state = *gate.log.state;
  const Exchange exchange{.messages = gate.messages,
                          .n_pairs = gate.row.n_pairs,
                          .n_norms = gate.row.n_norms,
                          .row = __shfl_sync(0xffffffffu, *gate.log.n_rows + 1, 0)};
  inputs.before = before_of(gate.output, row, end);
  if (state.to_skip > 0) {
    if (is_recorder) return pass_by(gate.log, exchange, state);
    __syncthreads();  // see Exchange
    if (tid == 0) tell_nothing(exchange, gate.n_workers);
    // No copy may be pending when the block ends.
    BlockCopy::wait(arrived);
    BlockCopy::wait(arrived + 1);
    return multiply_dense(gate);
  }
  if (!is_recorder) {
    project(gate.row, x, exchange, gate.n_workers, staged.directions, arrived);
    if (tid / 32 == kGateWarps - 1) tell_norm(gate.row, exchange, gate.n_workers);
    BlockCopy::wait(arrived + 1);
    image.read(staged.image);
  }
  Terms terms = receive_coordinates(gate.gauge, exchange, rank, diagonal, gate.n_places,
                                    reinterpret_cast<__nv_bfloat162*>(staged.coordinates));
  __syncthreads();
  if (!is_recorder) image.multiply(staged.coordinates, sums);
  terms.all = receive_norm(exchange);
  add_excess(terms.excess(gate.gauge), warps);
  if (is_recorder) add_terms(terms, recorder_terms);
  __syncthreads();
  const bool is_near = total_excess(warps) < 0;
  if (is_recorder)
    return record_row(gate.log, gate.gauge, gate.row, exchange, state, is_near, staged.coordinates,
                      recorder_terms);
  if (!is_near && receive_path(exchange) == kSlow) return multiply_dense(gate);
  const int at_once = gate.image.at_once;
#pragma unroll 1
  for (int first = gate.image.begin();;) {
    if (tid < at_once && row < end) finish(gate.output, row, image.sum_of(sums), inputs);
    first += at_once;
    row += at_once;
    if (first >= end) return;
    inputs = {bias_of(gate.output, row, end), before_of(gate.output, row, end)};
    __syncthreads();  // the sums are read
    multiply_units(gate.image, first, staged.coordinates, sums);
    __syncthreads();
  }
}

linear::RowWeights weights_of(const ConstTensor& matrix) {
  return {.data = matrix.bytes(),
          .stride = matrix.row_stride(),
          .n_out = matrix.rows(),
          .depth = matrix.row_elements()};
}

int n_workers(const Context& context) {
  return std::clamp(context.multiprocessors() - 1, 1, kGateThreads - 1);
}

// Parts of ||x||^2: a thread of a block receives either a pair of directions or one
// of these parts.
int norm_parts(const Context& context, int n_pairs) {
  return std::clamp(kGateThreads - n_pairs, 1, n_workers(context));
}

ProjectedRow projected_of(const Context& context, const ConstTensor& vectors,
                          const ConstTensor& x) {
  const auto n_in = static_cast<int>(vectors.row_elements());
  const auto n_pairs = static_cast<int>(ceil_div(vectors.rows(), 2));
  const int n_norms = norm_parts(context, n_pairs);
  return {.vectors = weights_of(vectors),
          .x = x.bytes(),
          .n_in = n_in,
          .n_pairs = n_pairs,
          .n_norms = n_norms,
          .norm_width = static_cast<int>(ceil_div(n_in, n_norms))};
}

// Of a block: two fit a multiprocessor of Hopper's.
constexpr int kMostShared = 110 << 10;
constexpr int kReservedShared = 1 << 10;  // of a block, for the system

// Without the image.
int64_t shared_bytes(int64_t n_in, int64_t rank) {
  return 2 * round_up(rank, kUnitDepth) + 4 * staged_width(static_cast<int>(n_in));
}

int64_t staged_bytes(const ImageRows& rows) {
  return 2 * int64_t{rows.depth} * std::min(rows.at_once, rows.of_a_block);
}

ImageRows image_of(const Context& context, const ConstTensor& image, int64_t room) {
  const auto pieces = static_cast<int>(ceil_div(image.row_elements(), kUnitDepth));
  const int64_t n_tiles = ceil_div(image.rows(), kUnitRows);
  ImageRows rows{
      .image = weights_of(image),
      .depth = static_cast<int>(image.row_elements()),
      .pieces = pieces,
      .at_once = kUnitRows * std::clamp(kMostUnits / pieces, 1, kGateThreads / kUnitRows),
      .of_a_block = kUnitRows * static_cast<int>(ceil_div(n_tiles, n_workers(context))),
      .staged = false};
  rows.staged = rows.depth % kUnitDepth == 0 && pieces <= kMostUnits && staged_bytes(rows) <= room;
  return rows;
}

void allow_shared_memory() {
  check(cudaFuncSetAttribute(gated_row, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
        "a gate's shared memory");
  // With another carveout the kernel could not run concurrently with the one before.
  check(cudaFuncSetAttribute(gated_row, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "a gate's shared memory");
}

}  // namespace

bool fits_gate(int64_t n_in, int64_t rank) { return shared_bytes(n_in, rank) <= kMostShared; }

int gate_places(const Context& context) {
  return context.multiprocessor_shared_bytes() / (kMostShared + kReservedShared);
}

int64_t gate_messages(const Context& context, int64_t rank) {
  const auto n_pairs = static_cast<int>(ceil_div(rank, 2));
  return n_pairs + norm_parts(context, n_pairs) + 1;
}

void run_gate(Context& context, const GateRowArgs& args) {
  static const bool allowed = (allow_shared_memory(), true);
  SLUICE_CHECK(allowed && args.image.contiguous() && args.dense.rows() < INT32_MAX / 2);
  const double squared = args.epsilon * args.epsilon;
  const int64_t shared = shared_bytes(args.vectors.row_elements(), args.vectors.rows());
  const GateRow gate{.row = projected_of(context, args.vectors, args.x),
                     .image = image_of(context, args.image, kMostShared - shared),
                     .n_workers = n_workers(context),
                     .n_places = static_cast<int>(round_up(args.vectors.rows(), kUnitDepth)),
                     .gauge = {.norm_weight = 1 + kRoundOff - squared,
                               .diagonal = args.diagonal,
                               .overlaps = view_of(args.overlaps),
                               .deviation = args.deviation,
                               .rounding = args.rounding,
                               .epsilon = args.epsilon},
                     .messages = args.memory.messages,
                     .log = {.limits = args.limits,
                             .state = args.state,
                             .n_rows = args.memory.n_rows,
                             .entries = args.memory.entries,
                             .coordinates = view_of(args.memory.coordinates)},
                     .output = {.bias = args.bias,
                                .activation = args.activation,
                                .accumulate = args.accumulate,
                                .out = view_of(args.out)},
                     .dense = weights_of(args.dense)};
  launch_programmatic(context, "gated_row", gated_row,
                      {.grid = dim3(static_cast<unsigned>(gate.n_workers + 1)),
                       .threads = kGateThreads,
                       .shared_bytes = shared + (gate.image.staged ? staged_bytes(gate.image) : 0),
                       .cooperative = true},
                      gate);
}

}  // namespace sluice::impl::cuda::subspace
