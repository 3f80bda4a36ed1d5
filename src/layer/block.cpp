#include "layer/block.h"

#include <algorithm>

#include "layer/parts.h"

namespace sluice::impl {

void Workspace::resize(Backend& backend, const BlockShape& shape, int64_t n_rows) {
  first_row_ = 0;
  n_rows_ = n_rows;
  if (n_rows <= capacity_) return;
  capacity_ = 0;  // until all are there
  const DType dtype = backend.compute_dtype();
  const int64_t heads = shape.n_heads + 2 * shape.n_kv_heads;
  residual_ = backend.allocate(DType::kF32, {n_rows, shape.d_model});
  input_ = backend.allocate(dtype, {n_rows, shape.d_model});
  if (shape.kind == BlockKind::kParallelNorms)
    mlp_input_ = backend.allocate(dtype, {n_rows, shape.d_model});
  qkv_ = backend.allocate(dtype, {n_rows, heads * shape.head_dim});
  attended_ = backend.allocate(dtype, {n_rows, shape.n_heads * shape.head_dim});
  mlp_in_ = backend.allocate(dtype, {n_rows, (shape.gated ? 2 : 1) * shape.d_inner});
  if (shape.gated) gated_ = backend.allocate(dtype, {n_rows, shape.d_inner});
  if (shape.kind == BlockKind::kPrePostNorm || shape.divided)
    added_ = backend.allocate(DType::kF32, {n_rows, shape.d_model});
  capacity_ = n_rows;
}

void Workspace::show(int64_t first_row, int64_t n_rows) {
  SLUICE_CHECK(first_row >= 0 && first_row + n_rows <= capacity_);
  first_row_ = first_row;
  n_rows_ = n_rows;
}

void Workspace::ask_for_squares(Backend& backend, bool wanted) {
  if (wanted && (!squares_.defined() || squares_.view().rows() < capacity_))
    squares_ = backend.allocate(DType::kF32, {capacity_, 4});
  wants_squares_ = wanted;
}

Tensor Workspace::gathered(Backend& backend, int64_t n) {
  if (!gathered_.defined() || gathered_.view().rows() < n)
    gathered_ = backend.allocate(input_.view().dtype(),
                                 {std::max<int64_t>(n, 1), input_.view().row_elements()});
  return gathered_.view().rows_from(0, n);
}

void run_linear(Backend& backend, const BlockInput& input, BasisInput which,
                const LinearArgs& args) {
  const TimedScope timed(
      input.times == nullptr ? nullptr : &input.times->linear[static_cast<size_t>(which)],
      input.timed_device);
  const auto gated = [&](const SequencePart& part) { return part.gate(which) != nullptr; };
  if (std::none_of(input.parts.begin(), input.parts.end(), gated)) {
    if (LinearGate* gate = input.gate(which))
      gate->run(args, input.sequence);
    else
      backend.linear(args);
    return;
  }
  // What a gate decides depends on its sequence, so each has a product of its own.
  for (const SequencePart& part : input.parts) {
    LinearArgs own = args;
    own.x = args.x.rows_from(part.first_row, part.n_tokens);
    own.out = args.out.rows_from(part.first_row, part.n_tokens);
    if (LinearGate* gate = part.gate(which))
      gate->run(own, 0);
    else
      backend.linear(own);
  }
}

void run_last_product(Backend& backend, const BlockInput& input, BasisInput which,
                      const LinearGroup& group, const LinearArgs& args) {
  if (!group.by_rows()) {
    run_linear(backend, input, which, args);
    if (input.ranks != nullptr) input.ranks->sum(backend, args.out);
    return;
  }
  SLUICE_CHECK(input.ranks != nullptr && !args.accumulate);
  const int64_t n_rows = args.x.rows();
  const Buffer x = backend.allocate(args.x.dtype(), {n_rows, group.dense().n_in()});
  const Buffer columns = backend.allocate(DType::kF32, {n_rows, group.dense().n_out()});
  input.ranks->gather(backend, args.x, x.view());
  LinearArgs own = args;
  own.x = x.view();
  own.out = columns.view();
  run_linear(backend, input, which, own);
  input.ranks->gather(backend, columns.view(), args.out);
}

void run_output(Backend& backend, const BlockInput& input, const HalfOutput& half,
                Workspace& workspace) {
  const bool normed = half.post_norm.exists, apart = normed || input.ranks != nullptr;
  const Tensor residual = workspace.residual(), out = apart ? workspace.added() : residual;
  const bool waits = input.sums_once && half.which == BasisInput::kAttentionOutput;
  const bool joins = input.sums_once && !waits;
  const LinearArgs product{
      .weights = &half.group.dense(), .x = half.x, .accumulate = !apart || joins, .out = out};
  if (waits) return run_linear(backend, input, half.which, product);
  run_last_product(backend, input, half.which, half.group, product);
  if (!apart) return;
  if (normed) half.post_norm.run(backend, out, out);
  backend.add_rows(out, {}, residual);
}

BlockInput BlockInput::of(const SequencePart& part) const {
  BlockInput one = *this;
  one.n_tokens = part.n_tokens;
  one.first_position = part.first_position;
  one.cache = part.cache;
  one.accelerated = part.accelerated;
  one.gates = part.gates;
  one.parts = {};
  one.positions = {};
  return one;
}

namespace {

bool reads_squares(const BlockInput& input) {
  const auto reads = [](const auto& part) {
    return part.accelerated != nullptr && part.accelerated->reads_squares(part.n_tokens);
  };
  return reads(input) || std::any_of(input.parts.begin(), input.parts.end(), reads);
}

// Attention that projects some of the rows alone adds its own sums.
bool projects_every_row(const BlockInput& input) {
  const auto every = [](const auto& part) {
    return part.accelerated == nullptr || part.accelerated->attends_every_query();
  };
  return every(input) && std::all_of(input.parts.begin(), input.parts.end(), every);
}

// Both halves of a parallel block, after its norms.
void run_parallel(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                  const BlockInput& input, Workspace& workspace) {
  BlockInput halves = input;
  halves.sums_once = input.ranks != nullptr && projects_every_row(input) &&
                     !weights.attention_out.by_rows() && !weights.mlp_out.by_rows();
  run_attention(backend, shape, weights, halves, workspace);
  run_mlp(backend, shape, weights, halves, workspace);
}

}  // namespace

void run_block(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
               const BlockInput& input, Workspace& workspace) {
  const Tensor residual = workspace.residual(), x = workspace.input();
  workspace.ask_for_squares(backend, shape.kind != BlockKind::kPostNorm &&
                                         backend.writes_squares() && reads_squares(input));
  switch (shape.kind) {
    case BlockKind::kPreNorm:
    case BlockKind::kPrePostNorm:
      weights.attention_norm.run(backend, residual, x, workspace.squares());
      run_attention(backend, shape, weights, input, workspace);
      weights.mlp_norm.run(backend, residual, x);
      run_mlp(backend, shape, weights, input, workspace);
      return;
    case BlockKind::kParallel:
      weights.attention_norm.run(backend, residual, x, workspace.squares());
      run_parallel(backend, shape, weights, input, workspace);
      return;
    case BlockKind::kParallelNorms:
      weights.attention_norm.run(backend, residual, x, workspace.squares());
      weights.mlp_norm.run(backend, residual, workspace.mlp_input());
      run_parallel(backend, shape, weights, input, workspace);
      return;
    case BlockKind::kPostNorm:
      backend.convert(residual, x);
      run_attention(backend, shape, weights, input, workspace);
      weights.attention_norm.run(backend, residual, residual);
      backend.convert(residual, x);
      run_mlp(backend, shape, weights, input, workspace);
      weights.mlp_norm.run(backend, residual, residual);
      return;
  }
}

}  // namespace sluice::impl
