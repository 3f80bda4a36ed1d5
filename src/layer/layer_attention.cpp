#include "layer/layer_attention.h"

#include <algorithm>
#include <utility>

#include "select/auto_tau.h"

namespace sluice::impl {
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
  spec.basis = shape.basis;
  return spec;
}

// Of a plan's heads, those of the shape.
std::span<const HeadPlan> heads_here(const LayerPlan& plan, const AttentionShape& shape) {
  return std::span(plan.heads)
      .subspan(static_cast<size_t>(shape.first_kv_head), static_cast<size_t>(shape.n_kv_heads));
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
  for (const HeadPlan& head : heads_here(plan, shape))
    spec.heads.push_back({.kind = head.kind,
                          .far = head.far,
                          .set = head.kind == HeadKind::kClusters && !plan.tau_auto
                                     ? index_of_tau(taus, head.tau)
                                     : 0});
  return spec;
}

}  // namespace

RefineSpec refine_spec(const LayerPlan& plan, const AttentionShape& shape, DType dtype,
                       int64_t capacity) {
  const int64_t page = plan.refine.page;
  RefineSpec spec{
      .n_heads = shape.n_heads,
      .n_kv_heads = shape.n_kv_heads,
      .head_dim = shape.head_dim,
      .dtype = dtype,
      .scale = shape.scale,
      .causal = shape.causal,
      .capacity = capacity,
      .window = plan.window,
      .segment = plan.refine.segment,
      .early = shape.causal && plan.refine.early < plan.refine.segment ? plan.refine.early : 0,
      .page = page,
      .sinks = whole_pages(plan.sinks, page),
      .tile = plan.refine.tile,
      .tile_factor = plan.refine.tile_factor,
      .members = plan.cache,
      .keeps_all = shape.keeps_all,
      .heads = {}};
  for (const HeadPlan& head : heads_here(plan, shape))
    spec.heads.push_back({head.kind, head.delta});
  return spec;
}

LayerCacheBytes& LayerCacheBytes::operator+=(const LayerCacheBytes& other) {
  keys_values.exact += other.keys_values.exact;
  keys_values.clusters += other.keys_values.clusters;
  selection_rows += other.selection_rows;
  outputs += other.outputs;
  return *this;
}

LayerAttention::LayerAttention(Backend& backend, const LayerPlan& plan, const AttentionShape& shape,
                               int64_t n_batch, int64_t capacity, LayerAttention* above)
    : backend_(backend),
      plan_(plan),
      d_model_(shape.d_model),
      capacity_(capacity),
      causal_(shape.causal),
      above_(above) {
  SLUICE_CHECK(plan.mode != AttentionMode::kDense && (!plan.reuse || above != nullptr));
  sequences_.resize(static_cast<size_t>(n_batch));
  const DType dtype = backend.compute_dtype();
  for (int64_t batch = 0; batch < n_batch; ++batch) {
    Sequence& sequence = sequences_[static_cast<size_t>(batch)];
    if (plan.mode == AttentionMode::kRefine) {
      sequence.refine = backend.make_refine_attention(refine_spec(plan, shape, dtype, capacity));
      continue;
    }
    if (plan.mode == AttentionMode::kBaseline) {
      sequence.baseline = backend.make_baseline_attention({.n_heads = shape.n_heads,
                                                           .n_kv_heads = shape.n_kv_heads,
                                                           .head_dim = shape.head_dim,
                                                           .dtype = dtype,
                                                           .scale = shape.scale,
                                                           .capacity = capacity,
                                                           .kind = plan.baseline.kind,
                                                           .keep = plan.baseline.keep,
                                                           .context = plan.baseline.context});
      continue;
    }
    if (!plan.reuse)
      sequence.selector = backend.make_selector(selector_spec(plan, shape, above != nullptr));
    if (plan.mode == AttentionMode::kKeys)
      sequence.keys =
          backend.make_keys_attention(keys_spec(plan, shape, dtype, chooser(batch).spec().taus));
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

const Selector& LayerAttention::chooser(int64_t batch) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  return sequence.selector != nullptr ? *sequence.selector : above_->chooser(batch);
}

bool LayerAttention::has_tau(int64_t batch) const {
  return !plan_.tau_auto || sequences_[static_cast<size_t>(batch)].tried != nullptr;
}

const Selector& LayerAttention::decided(int64_t batch) {
  decide(batch);
  SLUICE_CHECK(has_tau(batch));
  return chooser(batch);
}

bool LayerAttention::border_is_reached(int64_t batch, int64_t n_tokens) const {
  return !may_wait() || near_border(this->n_tokens(batch) + n_tokens, plan_.window, plan_.block) >
                            chooser(batch).n_decided();
}

int64_t LayerAttention::enough(int64_t batch) const {
  return has_tau(batch) ? plan_.block : kAutoTokens;
}

bool LayerAttention::decides_at_once(int64_t batch, int64_t n_tokens) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  return sequence.selector != nullptr && sequence.n_waiting == 0 &&
         (n_tokens >= enough(batch) || border_is_reached(batch, n_tokens));
}

bool LayerAttention::reads_squares(int64_t n_tokens) const {
  if (n_tokens <= 1 || !plan_.selects()) return false;
  for (int64_t batch = 0; batch < std::ssize(sequences_); ++batch)
    if (decides_at_once(batch, n_tokens)) return true;
  return false;
}

const TokenSet& LayerAttention::only_set(int64_t batch) const {
  const Selector& chosen = chooser(batch);
  return chosen.sets()[index_of_tau(chosen.spec().taus, plan_.taus()[0])];
}

void LayerAttention::select(int64_t batch, const TokenRows& tokens) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  const int64_t n = tokens.rows.rows();
  if (!plan_.selects()) {
    if (!backend_.recording()) sequence.n_tokens += n;
    return;
  }
  const bool at_once = decides_at_once(batch, n), reached = border_is_reached(batch, n);
  sequence.n_tokens += n;
  if (at_once) return extend(batch, tokens);
  if (sequence.selector != nullptr) wait(sequence, tokens);
  if (reached || sequence.n_waiting >= enough(batch)) decide(batch);
}

bool LayerAttention::can_record() const {
  if (plan_.mode != AttentionMode::kRefine) return false;
  return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& sequence) {
    return sequence.n_tokens > 0 && sequence.refine->can_record_next();
  });
}

void LayerAttention::expect_token() {
  for (Sequence& sequence : sequences_) {
    sequence.refine->expect_token();
    ++sequence.n_tokens;
  }
}

void LayerAttention::wait(Sequence& sequence, const TokenRows& tokens) {
  const auto append = [&](Buffer& buffer, const ConstTensor& from) {
    const int64_t n = sequence.n_waiting + from.rows();
    const int64_t most = plan_.tau_auto ? std::max(plan_.block, kAutoTokens) : plan_.block;
    const int64_t room = std::min(most, capacity_);  // a block may be longer than any text
    if (!buffer.defined() || buffer.view().rows() < n) {
      Buffer larger = backend_.allocate(from.dtype(), {std::max(n, room), d_model_});
      if (sequence.n_waiting > 0)
        backend_.convert(buffer.view().rows_from(0, sequence.n_waiting),
                         larger.view().rows_from(0, sequence.n_waiting));
      buffer = std::move(larger);
    }
    backend_.convert(from, buffer.view().rows_from(sequence.n_waiting, from.rows()));
  };
  append(sequence.waiting_rows, tokens.rows);
  if (plan_.outlier_ratio > 0 && plan_.space != SelectSpace::kResidual)
    append(sequence.waiting_residual, tokens.residual);
  sequence.n_waiting += tokens.rows.rows();
}

void LayerAttention::decide(int64_t batch) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  if (sequence.selector == nullptr) return above_->decide(batch);
  if (!has_tau(batch) && sequence.n_waiting < kAutoTokens) return;
  const int64_t n = std::exchange(sequence.n_waiting, 0);
  if (n == 0) return;
  const Tensor rows = sequence.waiting_rows.view().rows_from(0, n);
  const Tensor residual =
      sequence.waiting_residual.defined() ? sequence.waiting_residual.view().rows_from(0, n) : rows;
  extend(batch, {rows, residual});
}

void LayerAttention::extend(int64_t batch, const TokenRows& tokens) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  const Selector* above = above_ != nullptr ? &above_->decided(batch) : nullptr;
  if (!has_tau(batch)) choose_tau(batch, tokens);
  extend_from(*sequence.selector, above, tokens);
}

void LayerAttention::choose_tau(int64_t batch, const TokenRows& tokens) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  const Selector* above =
      above_ != nullptr ? above_->sequences_[static_cast<size_t>(batch)].tried.get() : nullptr;
  sequence.tried = selector_for(sequence, auto_taus());
  extend_from(*sequence.tried, above, tokens.from(0, kAutoTokens));
  std::span<const TokenSet> sets_above;
  if (above != nullptr) sets_above = above->sets();
  sequence.selector = selector_for(sequence, {auto_tau(sequence.tried->sets(), sets_above)});
}

std::unique_ptr<Selector> LayerAttention::selector_for(const Sequence& sequence,
                                                       std::vector<double> taus) const {
  SelectorSpec spec = sequence.selector->spec();
  spec.taus = std::move(taus);
  return backend_.make_selector(spec);
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
    sequence.tried = nullptr;
    if (sequence.keys != nullptr) sequence.keys->reset();
    if (sequence.reps != nullptr) sequence.reps->reset();
    if (sequence.refine != nullptr) sequence.refine->reset();
    if (sequence.baseline != nullptr) sequence.baseline->reset();
    sequence.n_tokens = sequence.n_waiting = sequence.n_outputs = sequence.n_handed = 0;
  }
}

LayerCacheBytes LayerAttention::bytes() const {
  LayerCacheBytes sum;
  for (const Sequence& sequence : sequences_) {
    int64_t waiting = 0;  // per token
    for (const Buffer* rows : {&sequence.waiting_rows, &sequence.waiting_residual})
      if (rows->defined()) waiting += d_model_ * element_bytes(rows->view().dtype());
    sum += {.keys_values = sequence.refine != nullptr     ? sequence.refine->bytes()
                           : sequence.baseline != nullptr ? sequence.baseline->bytes()
                           : sequence.keys != nullptr     ? sequence.keys->bytes()
                                                          : sequence.reps->bytes(),
            .selection_rows = (sequence.selector != nullptr ? sequence.selector->bytes() : 0) +
                              sequence.n_waiting * waiting,
            .outputs = sequence.n_outputs * d_model_ * element_bytes(DType::kF32)};
  }
  return sum;
}

}  // namespace sluice::impl
