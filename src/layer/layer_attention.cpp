#include "layer/layer_attention.h"

#include <algorithm>

#include "select/inherit.h"

namespace sluice {
namespace {

SelectorSpec selector_spec(const LayerPlan& plan, const AttentionShape& shape, bool inherits) {
  SelectorSpec spec;
  spec.rule = inherits ? plan.rule : first_rule(plan.rule);
  if (plan.mode == AttentionMode::kPaper)
    spec.owner = OwnerKind::kPaper;
  else
    spec.owner = shape.causal ? OwnerKind::kEarlier : OwnerKind::kAnywhere;
  spec.taus = plan.taus();
  spec.d_model = shape.d_model;
  spec.sinks = plan.sinks;
  spec.outlier_ratio = plan.outlier_ratio;
  return spec;
}

// The heads of a plan, each with its place among the sets in force.
KeysSpec keys_spec(const LayerPlan& plan, const AttentionShape& shape, DType dtype,
                   std::span<const double> taus) {
  KeysSpec spec{.n_heads = shape.n_heads,
                .n_kv_heads = shape.n_kv_heads,
                .head_dim = shape.head_dim,
                .dtype = dtype,
                .scale = shape.scale,
                .causal = shape.causal,
                .window = plan.window,
                .block = plan.block,
                .heads = {}};
  for (const HeadPlan& head : plan.heads)
    spec.heads.push_back(
        {.kind = head.kind,
         .far = head.far,
         .set = head.kind == HeadKind::kClusters ? index_of_tau(taus, head.tau) : 0});
  return spec;
}

}  // namespace

LayerCacheBytes& LayerCacheBytes::operator+=(const LayerCacheBytes& other) {
  keys_values.exact += other.keys_values.exact;
  keys_values.clusters += other.keys_values.clusters;
  selection_rows += other.selection_rows;
  outputs += other.outputs;
  return *this;
}

LayerAttention::LayerAttention(Backend& backend, const LayerPlan& plan, const AttentionShape& shape,
                               int64_t n_batch, const LayerAttention* above)
    : backend_(backend), plan_(plan), d_model_(shape.d_model), above_(above) {
  SLUICE_CHECK(plan.mode != AttentionMode::kDense && (!plan.reuse || above != nullptr));
  sequences_.resize(static_cast<size_t>(n_batch));
  const DType dtype = backend.compute_dtype();
  for (int64_t batch = 0; batch < n_batch; ++batch) {
    Sequence& sequence = sequences_[static_cast<size_t>(batch)];
    if (!plan.reuse)
      sequence.selector = backend.make_selector(selector_spec(plan, shape, above != nullptr));
    if (plan.mode == AttentionMode::kKeys)
      sequence.keys =
          backend.make_keys_attention(keys_spec(plan, shape, dtype, selector(batch).spec().taus));
    else
      sequence.reps =
          backend.make_reps_attention({.n_heads = shape.n_heads,
                                       .n_kv_heads = shape.n_kv_heads,
                                       .head_dim = shape.head_dim,
                                       .dtype = dtype,
                                       .scale = shape.scale,
                                       .causal = shape.causal,
                                       .multiplicity = plan.mode == AttentionMode::kCopy});
  }
}

const Selector& LayerAttention::selector(int64_t batch) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  return sequence.selector != nullptr ? *sequence.selector : above_->selector(batch);
}

std::span<const TokenSet> LayerAttention::sets(int64_t batch) const {
  return selector(batch).sets();
}

const TokenSet& LayerAttention::only_set(int64_t batch) const {
  const Selector& chosen = selector(batch);
  return chosen.sets()[index_of_tau(chosen.spec().taus, plan_.taus()[0])];
}

void LayerAttention::select(int64_t batch, const ConstTensor& rows, const ConstTensor& residual) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  if (sequence.selector == nullptr) return;
  std::span<const TokenSet> inherited;
  if (above_ != nullptr) inherited = above_->sets(batch);
  extend_from(*sequence.selector, inherited, rows, residual);
}

Tensor LayerAttention::add_outputs(int64_t batch, int64_t n) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  const int64_t capacity = sequence.outputs.defined() ? sequence.outputs.view().rows() : 0;
  if (sequence.n_outputs + n > capacity) {
    Buffer larger = backend_.allocate(
        DType::kF32, {std::max(sequence.n_outputs + n, capacity + capacity / 2), d_model_});
    if (sequence.n_outputs > 0)
      backend_.convert(outputs(batch), larger.view().rows_from(0, sequence.n_outputs));
    sequence.outputs = std::move(larger);
  }
  sequence.n_outputs += n;
  return sequence.outputs.view().rows_from(sequence.n_outputs - n, n);
}

ConstTensor LayerAttention::outputs(int64_t batch) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  return sequence.outputs.view().rows_from(0, sequence.n_outputs);
}

void LayerAttention::reset() {
  for (Sequence& sequence : sequences_) {
    if (sequence.selector != nullptr) sequence.selector->reset();
    if (sequence.keys != nullptr) sequence.keys->reset();
    if (sequence.reps != nullptr) sequence.reps->reset();
    sequence.n_outputs = 0;
  }
}

LayerCacheBytes LayerAttention::bytes() const {
  LayerCacheBytes sum;
  for (const Sequence& sequence : sequences_)
    sum +=
        {.keys_values = sequence.keys != nullptr ? sequence.keys->bytes() : sequence.reps->bytes(),
         .selection_rows = sequence.selector != nullptr ? sequence.selector->bytes() : 0,
         .outputs = sequence.n_outputs * d_model_ * element_bytes(DType::kF32)};
  return sum;
}

}  // namespace sluice
