// A gate that decides where its row is, docs/algorithm.md section 4, in one kernel: every block
// multiplies two directions of V with x and tells the others, hears theirs, sums up the verdict for
// itself and multiplies its rows of the output, by the image where the row is near enough and else
// by the whole matrix. What it needs of V and of the image is on its way before the kernels ahead
// are done: two blocks fit a multiprocessor, so that reading goes on while another gate waits.
//
// All blocks must be on the device at one time: they are, since no kernel behind this one begins
// before them, and those ahead of it end by themselves. Two streams of gates can share a device, a
// block of each to a multiprocessor; a third could make all of them wait for ever.
//
// Where a verdict is open the first block decides, while the others wait for its word. Of the other
// residuals nobody waits for E: settle_residuals adds it when somebody asks.

#include <algorithm>

#include "backend/cuda/early.cuh"
#include "backend/cuda/subspace_image.cuh"
#include "backend/cuda/subspace_project.cuh"

namespace sluice::cuda {
namespace {

struct GateRow {
  ProjectedRow row;
  Gauge gauge;
  int32_t slow_tokens, retry_tokens;
  GateState* state;
  GateMessage* messages;
  uint32_t* n_rows;
  GateEntry* entries;
  RowsView coordinates;
  RowWeights image, dense;
  RowOutput output;

  __host__ __device__ int n_pairs() const { return static_cast<int>((row.vectors.n_out + 1) / 2); }
};

// Parts of ||x||^2: a thread of a block hears a pair of directions or one of them.
__host__ __device__ int norm_parts(int64_t n_blocks, int n_pairs) {
  const int free = kGateThreads - n_pairs;
  return free < 1 ? 1 : (free < n_blocks ? free : static_cast<int>(n_blocks));
}

// That this block has seen where the sequence stands, and nothing else.
__device__ void tell_nothing(const Exchange& exchange) {
  for (int pair = static_cast<int>(blockIdx.x); pair < exchange.n_pairs;
       pair += static_cast<int>(gridDim.x))
    exchange.tell(pair, 0, 0);
  const int part = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  if (part < exchange.n_norms) exchange.tell(exchange.norm(part), 0, 0);
}
__device__ void hear_all(const Exchange& exchange) {
  for (int i = static_cast<int>(threadIdx.x); i < exchange.n_pairs + exchange.n_norms;
       i += kGateThreads)
    exchange.hear(i);
}

// By one thread: what Bypass of src/layer/bypass.h does on the host.
__device__ void write_down(const GateRow& gate, GateState state, uint32_t row,
                           const GateEntry& entry) {
  gate.entries[(row - 1) % RowGate::kRoom] = entry;
  if (entry.passed_by) {
    --state.to_skip;
  } else if (entry.fast) {
    state.slow_in_a_row = 0;
  } else if (++state.slow_in_a_row == gate.slow_tokens) {
    --state.slow_in_a_row;
    state.to_skip = gate.retry_tokens - 1;
  }
  *gate.state = state;
  *gate.n_rows = row;
}

// By the first block, for all of them where the way is open.
__device__ Way decide(const GateRow& gate, const Exchange& exchange, Estimate& found,
                      const std::byte* coordinates) {
  __shared__ double shared[kGateWarps];
  found.rest += overlap(gate.gauge.overlaps, coordinates, gate.row.vectors.n_out, shared);
  Way way = way_of(gate.gauge, found, gate.gauge.rounding * found.inside + kRoundOff * found.all);
  if (way == kOpen) {
    found.rest = explicit_rest(gate.row.vectors, gate.row.x, coordinates, shared);
    way = missed_share(found.all, found.rest) <= gate.gauge.epsilon ? kFast : kSlow;
  }
  if (threadIdx.x < 32) exchange.tell(exchange.way(), static_cast<uint32_t>(way), 0);
  return way;
}

__device__ Way hear_way(const Exchange& exchange) {
  __shared__ uint32_t heard;
  if (threadIdx.x == 0) heard = exchange.hear(exchange.way()).small;
  __syncthreads();
  return static_cast<Way>(heard);
}

// The finished row of the output, by the thread that has its sum.
struct Beside {
  float bias, before;
};
__device__ float bias_of(const RowOutput& output, int row, int end) {
  return output.bias != nullptr && row < end ? output.bias[row] : 0.0f;
}
__device__ float before_of(const RowOutput& output, int row, int end) {
  float value[1] = {0};
  if (output.accumulate && row < end) load<1>(output.out, 0, row, value);
  return value[0];
}
__device__ void finish(const RowOutput& output, int row, float sum, const Beside& beside) {
  sum += beside.bias;
  const float value[1] = {output.accumulate ? beside.before + sum
                                            : activate(output.activation, sum)};
  store<1>(output.out, 0, row, value);
}

__global__ void __launch_bounds__(kGateThreads, 2) gated_row(GateRow gate) {
  extern __shared__ uint4 shared[];
  __shared__ Terms warps[kGateWarps];
  __shared__ UnitSums partial;
  let_next_begin();
  const Staged staged{shared, static_cast<int>(pass_of(gate.row.vectors.depth) / 8)};
  ask_for_pair(gate.row, blockIdx.x, 0, staged);
  const ImageProduct image(gate.image);
  int row = image.begin() + static_cast<int>(threadIdx.x);
  const float2 diagonal = diagonal_of(gate.row, static_cast<int>(threadIdx.x));
  Beside beside{bias_of(gate.output, row, image.end()), 0};
  wait_for_earlier();

  ask_for_x(gate.row, 0, staged);
  commit_copies();
  const GateState state = *gate.state;
  const bool is_first = blockIdx.x == 0, passes_by = state.to_skip > 0;
  const Exchange exchange{.messages = gate.messages,
                          .n_pairs = gate.n_pairs(),
                          .n_norms = norm_parts(gridDim.x, gate.n_pairs()),
                          .row = __shfl_sync(0xffffffffu, *gate.n_rows + 1, 0)};
  beside.before = before_of(gate.output, row, image.end());
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Way way = kSlow;
  if (passes_by) {
    wait_copies<0>();
    __syncthreads();  // see Exchange
    if (warp == 0) tell_nothing(exchange);
    if (is_first) {
      hear_all(exchange);
      __syncthreads();
      if (threadIdx.x == 0)
        write_down(gate, state, exchange.row,
                   {.all = 0, .rest = 0, .fast = false, .passed_by = true, .settled = true});
    }
  } else {
    project(gate.row, exchange, staged);
    if (warp == kGateWarps - 1) tell_norm(gate.row, exchange, staged);
    Terms terms = hear_coordinates(gate.row, exchange, diagonal,
                                   reinterpret_cast<__nv_bfloat162*>(staged.coordinates()));
    __syncthreads();
    image.multiply_first(staged.coordinates(), partial);
    add_up(terms, exchange, warps);
    __syncthreads();
    Estimate found = estimate(warps);
    way = first_way(gate.gauge, found);
    const bool open = way == kOpen;
    if (open)
      way = is_first ? decide(gate, exchange, found, staged.coordinates()) : hear_way(exchange);
    if (way == kFast) {
      for (int first = image.begin(); first < image.end();) {
        if (static_cast<int>(threadIdx.x) < image.at_once() && row < image.end())
          finish(gate.output, row, image.sum_of(partial), beside);
        first += image.at_once();
        row += image.at_once();
        if (first >= image.end()) break;
        beside = {bias_of(gate.output, row, image.end()), before_of(gate.output, row, image.end())};
        __syncthreads();  // the sums are read
        image.multiply_more(first, staged.coordinates(), partial);
        __syncthreads();
      }
    }
    if (is_first) {
      const int64_t place = (exchange.row - 1) % RowGate::kRoom;
      auto* to =
          reinterpret_cast<uint4*>(gate.coordinates.data + 2 * place * gate.coordinates.stride);
      for (int64_t i = threadIdx.x; i < gate.image.depth / 8; i += kGateThreads)
        to[i] = reinterpret_cast<const uint4*>(staged.coordinates())[i];
      if (threadIdx.x == 0)
        write_down(gate, state, exchange.row,
                   {.all = found.all,
                    .rest = found.rest,
                    .fast = way == kFast,
                    .passed_by = false,
                    .settled = open});
    }
  }
  if (way == kFast) return;
  // Neighbours in different blocks, so that all multiprocessors read some of a small matrix.
  const int64_t turn = int64_t{warp} * gridDim.x + blockIdx.x;
  uint4 piece[kPieceLoads];
  read_piece<kDenseRows>(gate.dense, kDenseRows * turn, 0, piece);
  multiply_rows<kDenseRows>(gate.dense, gate.row.x, gate.output, turn,
                            int64_t{gridDim.x} * kGateWarps, piece);
}

RowWeights weights_of(const ConstTensor& matrix) {
  return {.data = matrix.bytes(),
          .stride = matrix.row_stride(),
          .n_out = matrix.rows(),
          .depth = matrix.row_elements()};
}

constexpr int kMostShared = 156 << 10;  // all GPUs that are taken have 160, some of it is static

int64_t n_blocks(const Context& context) {
  return std::min<int64_t>(context.multiprocessors(), kGateThreads);
}

void allow_shared_memory() {
  check(cudaFuncSetAttribute(gated_row, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
        "a gate's shared memory");
  // With another division between blocks and cache no kernel could run beside the one before.
  check(cudaFuncSetAttribute(gated_row, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "a gate's shared memory");
}

int64_t shared_bytes(int64_t n_in, int64_t rank) {
  return staged_bytes(n_in, round_up(rank, kUnitDepth));
}

}  // namespace

bool fits_gate(int64_t n_in, int64_t rank) { return shared_bytes(n_in, rank) <= kMostShared; }

int64_t gate_messages(const Context& context, int64_t rank) {
  const auto n_pairs = static_cast<int>((rank + 1) / 2);
  return kGateCopies * (n_pairs + norm_parts(n_blocks(context), n_pairs) + 1);
}

void run_gate(Context& context, const GateRowArgs& args) {
  static const bool allowed = (allow_shared_memory(), true);
  const int64_t shared = shared_bytes(args.vectors.row_elements(), args.vectors.rows());
  SLUICE_CHECK(allowed && shared <= kMostShared);
  const GateRow gate{
      .row = {.vectors = weights_of(args.vectors), .x = args.x.bytes(), .diagonal = args.diagonal},
      .gauge = {.overlaps = view_of(args.overlaps),
                .deviation = args.deviation,
                .rounding = args.rounding,
                .epsilon = args.epsilon},
      .slow_tokens = args.slow_tokens,
      .retry_tokens = args.retry_tokens,
      .state = args.state,
      .messages = args.memory.messages,
      .n_rows = args.memory.n_rows,
      .entries = args.memory.entries,
      .coordinates = view_of(args.memory.coordinates),
      .image = weights_of(args.image),
      .dense = weights_of(args.dense),
      .output = {.bias = args.bias,
                 .activation = args.activation,
                 .accumulate = args.accumulate,
                 .out = view_of(args.out)}};
  launch_early(context, "gated_row", gated_row,
               {.grid = dim3(static_cast<unsigned>(n_blocks(context))),
                .threads = kGateThreads,
                .shared_bytes = shared},
               gate);
}

}  // namespace sluice::cuda
