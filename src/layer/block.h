// One transformer block: attention and MLP around the residual stream.

#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "layer/layer_attention.h"
#include "layer/layer_times.h"
#include "layer/linear_gate.h"
#include "layer/norm.h"
#include "subspace/basis.h"

namespace sluice::impl {

enum class BlockKind : uint8_t {
  kPreNorm,        // x += attention(norm(x)); x += mlp(norm(x))
  kParallel,       // n = norm(x); x += attention(n) + mlp(n)
  kParallelNorms,  // x += attention(norm(x)) + mlp(norm'(x))
  kPostNorm,       // x = norm(x + attention(x)); x = norm(x + mlp(x))
  kPrePostNorm,    // x += norm(attention(norm(x))); x += norm(mlp(norm(x))): four norms
};

// What all blocks of a model share.
struct BlockShape {
  BlockKind kind;
  int64_t d_model, n_heads, n_kv_heads, head_dim, d_inner;
  Activation activation;
  bool gated;
  bool causal;
  bool rotary;
  RotaryStyle rotary_style;
  float attention_cap = 0;  // AttendDenseArgs::cap
  bool divided = false;     // heads and inner columns are those of one rank: BlockInput::ranks
};

// A block's weights. The four matrices are the linear groups that plans and GSI speak of:
// attention input (q, k and v stacked), attention output, MLP input (gate and up stacked when
// gated), MLP output.
struct BlockWeights {
  Norm attention_norm, mlp_norm;
  Norm query_norm, key_norm;  // of each head, before rotary embedding
  LinearGroup qkv, attention_out, mlp_in, mlp_out;
  int64_t window = 0;  // sliding window of this layer, 0 for none
  float scale = 1;     // of attention scores
  bool rotary = true;  // false: this layer does not rotate, whatever the shape says
  // Of what attention and MLP add to the residual stream, in blocks of kind kPrePostNorm.
  Norm attention_post_norm = {}, mlp_post_norm = {};

  LinearGroup& group(BasisInput input) {
    return *std::array{&qkv, &attention_out, &mlp_in, &mlp_out}[static_cast<size_t>(input)];
  }
  const LinearGroup& group(BasisInput input) const {
    return *std::array{&qkv, &attention_out, &mlp_in, &mlp_out}[static_cast<size_t>(input)];
  }
};

// Memory for the activations inside a block, shared by all of them.
class Workspace {
 public:
  // Views for n_rows; grows, never shrinks.
  void resize(Backend& backend, const BlockShape& shape, int64_t n_rows);
  // Restricts the views to some of the rows, until the next call or resize().
  void show(int64_t first_row, int64_t n_rows);
  int64_t capacity() const { return capacity_; }  // rows that there is memory for

  Tensor residual() const { return rows_of(residual_); }  // (n_rows, d_model) f32
  Tensor input() const { return rows_of(input_); }        // (n_rows, d_model)
  // What the MLP reads: input(), or rows of its own in a block of kind kParallelNorms.
  Tensor mlp_input() const { return rows_of(mlp_input_.defined() ? mlp_input_ : input_); }
  Tensor qkv() const { return rows_of(qkv_); }            // (n_rows, q + k + v widths)
  Tensor attended() const { return rows_of(attended_); }  // (n_rows, n_heads * head_dim)
  Tensor mlp_in() const { return rows_of(mlp_in_); }      // (n_rows, d_inner or twice that)
  Tensor gated() const { return rows_of(gated_); }        // (n_rows, d_inner), gated models only
  // (n_rows, d_model) f32: what is normed before it is added, in blocks of kind kPrePostNorm, or
  // summed over ranks.
  Tensor added() const { return rows_of(added_); }
  // NormArgs::squares of a block's attention norm, which reads residual() and writes input(), from
  // ask_for_squares(true) to the next call: (n_rows, 4) f32, otherwise undefined.
  void ask_for_squares(Backend& backend, bool wanted);
  Tensor squares() const { return wants_squares_ ? rows_of(squares_) : Tensor(); }
  // Rows of input() brought together, n of them: (n, d_model).
  Tensor gathered(Backend& backend, int64_t n);

 private:
  Tensor rows_of(const Buffer& buffer) const {
    return buffer.view().rows_from(first_row_, n_rows_);
  }
  Buffer residual_, input_, mlp_input_, qkv_, attended_, mlp_in_, gated_, added_, gathered_,
      squares_;
  int64_t first_row_ = 0, n_rows_ = 0, capacity_ = 0;
  bool wants_squares_ = false;
};

// What a dense attention block saw and made, for analysis.
struct AttentionSeen {
  int64_t layer = 0;
  ConstTensor residual;  // (n_rows, d_model) f32, before the block
  ConstTensor input;     // (n_rows, d_model) after the block's norm; a post-norm block's input
  ConstTensor queries;   // (n_rows, n_heads, head_dim), after rotary embedding
  ConstTensor keys;      // (n_rows, n_kv_heads, head_dim), after rotary embedding
  ConstTensor values;    // (n_rows, n_kv_heads, head_dim)
  ConstTensor attended;  // (n_rows, n_heads, head_dim), before the output projection
};
using AttentionObserver = std::function<void(const AttentionSeen&)>;

// The rows (n_rows, d) that a linear layer is about to multiply, for analysis and calibration. A
// parallel block's attention and MLP read the same rows, for which the observer is called once.
struct LinearSeen {
  int64_t layer = 0;
  BasisInput input = BasisInput::kAttentionInput;
  ConstTensor rows;
};
using LinearObserver = std::function<void(const LinearSeen&)>;

// What the ranks of a divided block do together. All tensors are contiguous.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  // Replaces rows (n_rows, d_model) f32 by the sum of those of all ranks.
  virtual void sum(Backend& backend, const Tensor& rows) = 0;
  // out: (n_rows, columns of all ranks, in their order); own: (n_rows, those of this one)
  virtual void gather(Backend& backend, const ConstTensor& own, const Tensor& out) = 0;
};

// One sequence of a ragged batch, in one layer.
struct SequencePart {
  int64_t first_row;  // of its new tokens in the workspace
  int64_t n_tokens;
  int64_t first_position;
  KvView cache;                           // when the layer is dense
  LayerAttention* accelerated = nullptr;  // when it is not
  LinearGates* gates = nullptr;

  LinearGate* gate(BasisInput which) const {
    return gates == nullptr ? nullptr : (*gates)[static_cast<size_t>(which)].get();
  }
};

// Where in the sequences this pass stands.
struct BlockInput {
  int64_t layer = 0;
  int64_t n_tokens;                       // per sequence
  int64_t first_position;                 // of the first of them
  KvView cache;                           // this layer's, when it is dense
  LayerAttention* accelerated = nullptr;  // when it is not
  ConstTensor cosine, sine;
  const AttentionObserver* observer = nullptr;      // called for dense layers
  const LinearObserver* linear_observer = nullptr;  // the same
  LayerTimes* times = nullptr;                      // grow by what is done here
  Backend* timed_device = nullptr;                  // whose work they wait for
  LinearGates* gates = nullptr;                     // without, linear layers are dense
  bool exact = false;     // attends exactly and leaves refined caches as they are; of one token
  int64_t sequence = -1;  // whose rows these are; -1: all, stacked
  RankExchange* ranks = nullptr;  // of a divided block
  // Of such a block that is parallel: attention's product waits in workspace.added() for the MLP's,
  // and their sum goes over the ranks once.
  bool sums_once = false;
  // A ragged batch: sequences of lengths of their own, whose rows cover the workspace in order.
  // n_tokens, first_position, cache, accelerated and gates are then those of each part.
  std::span<const SequencePart> parts = {};
  std::span<const int32_t> positions = {};  // (n_rows), of a ragged batch

  // The pass of one part alone.
  BlockInput of(const SequencePart& part) const;

  LinearGate* gate(BasisInput which) const {
    return gates == nullptr ? nullptr : (*gates)[static_cast<size_t>(which)].get();
  }

  TimedScope time(double LayerTimes::*part) const {
    return {times == nullptr ? nullptr : &(times->*part), timed_device};
  }

  void linear_seen(BasisInput which, const ConstTensor& rows) const {
    if (linear_observer != nullptr && *linear_observer)
      (*linear_observer)({.layer = layer, .input = which, .rows = rows});
  }
};

// Takes workspace.residual() through the block, in place.
void run_block(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
               const BlockInput& input, Workspace& workspace);

}  // namespace sluice::impl
