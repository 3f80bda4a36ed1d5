// The forward pass: embedding, blocks, final norm, head.

#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "model/grown.h"
#include "model/shapes.h"
#include "model/weight_type.h"

namespace sluice::impl {
namespace {

int64_t checked_context(const ModelSpec& spec, int64_t context) {
  if (context > spec.max_positions)
    throw Error(
        fmt::format("context {} is longer than the model's {}", context, spec.max_positions),
        fmt::format("use --context {} or less", spec.max_positions));
  if (context > 0) return context;
  return spec.default_context > 0 ? spec.default_context : spec.max_positions;
}

std::shared_ptr<const ModelDescription> own_description(
    const std::shared_ptr<const Checkpoint>& checkpoint, const TensorShare* share) {
  const ModelDescription& whole = checkpoint->description;
  if (share == nullptr) return {checkpoint, &whole};
  return std::make_shared<ModelDescription>(
      description_of(whole, share->ranges(), /*with_biases=*/share->first()));
}

ModelWeights checked_weights(const Checkpoint& checkpoint, const ModelDescription& own,
                             Backend& backend, const LoadOptions& options) {
  const ModelSpec& spec = own.spec;
  backend.check_heads(spec.head_dim, spec.n_heads / spec.n_kv_heads);
  const DType compute = backend.compute_dtype();
  if (options.weights && block_size(*options.weights).elements == 1 && *options.weights != compute)
    throw Error(fmt::format("weights of {} do not go with activations of {}",
                            dtype_name(*options.weights), dtype_name(compute)),
                fmt::format("--weights {}, or a block type such as q8_0", dtype_name(compute)));
  if (options.part.share != nullptr) options.part.share->connect(backend);
  return load_weights(own, checkpoint.weights(), backend,
                      {.progress = options.progress,
                       .weights = {options.weights, options.expand_blocks},
                       .stage = options.part.stage.get()});
}

}  // namespace

Model::Model(std::shared_ptr<const Checkpoint> checkpoint, std::unique_ptr<Backend> backend,
             const LoadOptions& options)
    : checkpoint_(std::move(checkpoint)),
      spec_(checkpoint_->spec()),
      backend_(std::move(backend)),
      context_(checked_context(spec_, options.context)),
      stage_(options.part.stage),
      share_(options.part.share),
      own_(own_description(checkpoint_, share_.get())),
      layers_(stage_ != nullptr ? stage_->layers() : LayerRange{0, spec_.n_layers}),
      weight_type_{options.weights, options.expand_blocks},
      weights_(checked_weights(*checkpoint_, *own_, *backend_, options)) {
  SLUICE_CHECK(stage_ == nullptr || share_ == nullptr);
}

BlockShape Model::own_block_shape() const {
  BlockShape shape = block_shape(own_->spec);
  shape.divided = share_ != nullptr;
  return shape;
}

PlanShape Model::plan_shape() const {
  return {.n_layers = spec_.n_layers,
          .n_kv_heads = spec_.n_kv_heads,
          .causal = spec_.causal,
          .windows = spec_.windows,
          .context = context_,
          .capped = spec_.attention_cap > 0};
}

LinearShape linear_shape_of(const ModelSpec& spec) {
  return {.n_layers = spec.n_layers,
          .widths = spec.row_widths(),
          .parallel = spec.block == BlockKind::kParallel,
          .relu = !spec.gated && spec.activation == Activation::kRelu};
}

LinearShape Model::linear_shape() const { return linear_shape_of(spec_); }

void Model::prepare_linear(const LinearPlan& plan, const Bases* bases) {
  check_linear_plan(plan, linear_shape(), bases);
  if (bases != nullptr) {
    if (bases_text_.value_or(bases->text_sha256) != bases->text_sha256)
      throw Error("the model has images in bases of another text already",
                  "load it again for other bases");
    bases_text_ = bases->text_sha256;
  }
  if (plan.layers.empty()) return;
  for (int64_t layer = layers_.begin; layer < layers_.end; ++layer)
    prepare_groups(layer, plan.layers[static_cast<size_t>(layer)], bases);
}

MatrixSource Model::gated_source(int64_t layer, BasisInput input) const {
  const bool by_rows = has_columns_of(input);
  const ModelDescription& of = by_rows ? checkpoint_->description : *own_;
  const LayerNames& names = of.names.layers[static_cast<size_t>(layer)];
  const MatrixNames& all = *std::array{&names.qkv, &names.attention_out, &names.mlp_in,
                                       &names.mlp_out}[static_cast<size_t>(input)];
  return with_weight_type(
      matrix_source(checkpoint_->weights(), by_rows ? rows_of(all, share_->ranges().model) : all,
                    of.spec.row_widths().of(input)),
      weight_type_);
}

void Model::prepare_groups(int64_t layer, const LayerLinearPlan& plan, const Bases* bases) {
  BlockWeights& block = weights_.blocks[static_cast<size_t>(layer)];
  for (const BasisInput input : kLinearInputs) {
    const GroupPlan& group_plan = plan.of(input);
    LinearGroup& group = block.group(input);
    const bool gsi = group_plan.kind == LinearKind::kGsi;
    const bool host = gsi && group_plan.adaptive > 0;
    const Subspace* subspace = gsi ? group.subspace(group_plan.rank) : nullptr;
    if (gsi ? subspace != nullptr && (!host || subspace->host != nullptr)
            : group_plan.kind == LinearKind::kDense || group.columns() != nullptr)
      continue;
    const MatrixSource source = gated_source(layer, input);
    if (has_columns_of(input) && !group.by_rows()) {
      weights_.bytes -= group.dense().bytes();
      group = LinearGroup(backend_->pack_linear(source), /*by_rows=*/true);
      weights_.bytes += group.dense().bytes();
    }
    if (!gsi) {
      group.add_columns(*backend_, source);
      continue;
    }
    const BasisInput rows = linear_shape().basis_of(input);
    SLUICE_CHECK(bases != nullptr);
    const Basis& basis = *bases->find(layer, rows);
    const auto vectors =
        std::span(basis.vectors).first(static_cast<size_t>(group_plan.rank * basis.d));
    if (subspace == nullptr) {
      // The MLP of a parallel block has the basis of its attention.
      const Subspace* shared =
          rows == input ? nullptr : block.group(rows).subspace(group_plan.rank);
      group.add_subspace(*backend_, source,
                         shared != nullptr
                             ? shared->basis
                             : backend_->make_basis(vectors, group_plan.rank, basis.d));
    }
    if (host) group.add_host_subspace(*backend_, group_plan.rank, vectors, source.bias);
  }
}

int64_t Model::prepared_bytes() const {
  int64_t bytes = 0;
  for (const BlockWeights& block : weights_.blocks)
    for (const BasisInput input : kLinearInputs) bytes += block.group(input).prepared_bytes();
  return bytes;
}

void Model::prepare_selection(const Bases& bases) {
  for (const Basis& basis : bases.list) {
    if (basis.input != BasisInput::kSelectionNormed &&
        basis.input != BasisInput::kSelectionResidual)
      continue;
    const SelectSpace space =
        basis.input == BasisInput::kSelectionNormed ? SelectSpace::kNormed : SelectSpace::kResidual;
    selection_bases_[{basis.layer, space}] =
        std::make_shared<SelectionBasis>(basis.rank, basis.d, basis.vectors);
  }
}

KvCache Model::make_cache(int64_t n_batch, int64_t capacity, const AttentionPlan& asked,
                          const LinearPlan& linear) const {
  if (!asked.layers.empty()) check_plan(asked, plan_shape());
  const AttentionPlan plan = fitted(asked, plan_shape());
  std::vector<LinearGates> gates;
  if (!linear.all_dense()) {
    SLUICE_CHECK(linear.layers.size() == weights_.blocks.size());
    gates.resize(weights_.blocks.size());
    const auto scratch = std::make_shared<LinearScratch>();
    for (auto layer = static_cast<size_t>(layers_.begin); layer < static_cast<size_t>(layers_.end);
         ++layer)
      for (const BasisInput input : kLinearInputs)
        if (const GroupPlan& group = linear.layers[layer].of(input);
            group.kind != LinearKind::kDense)
          gates[layer][static_cast<size_t>(input)] = std::make_unique<LinearGate>(
              *backend_, weights_.blocks[layer].group(input), group, n_batch, scratch);
  }
  std::vector<std::shared_ptr<const SelectionBasis>> bases;
  for (int64_t layer = 0; layer < std::ssize(plan.layers); ++layer) {
    const LayerPlan& of_layer = plan.layers[static_cast<size_t>(layer)];
    bases.push_back(nullptr);
    if (!of_layer.joint || of_layer.reuse) continue;
    const auto found = selection_bases_.find({layer, of_layer.space});
    if (found == selection_bases_.end())
      throw Error(fmt::format("layer {}: there is no basis for its joint selection", layer),
                  fmt::format("sluice calibrate --selection {} makes them, --bases takes them",
                              space_name(of_layer.space)));
    bases.back() = found->second;
  }
  return KvCache(own_->spec, *backend_, n_batch, capacity > 0 ? capacity : context_,
                 {.range = layers_,
                  .plan = plan,
                  .gates = std::move(gates),
                  .bases = std::move(bases),
                  .first_kv_head = share_ != nullptr ? share_->ranges().kv_heads.begin : 0});
}

void Model::check_tokens(std::span<const int32_t> tokens, const KvCache& cache) const {
  const auto n_rows = static_cast<int64_t>(tokens.size());
  if (n_rows == 0) throw Error("the text has no tokens", "does the tokenizer belong to the model?");
  const int64_t n_tokens = n_rows / cache.n_batch(), first = cache.length();
  SLUICE_CHECK(n_tokens * cache.n_batch() == n_rows);
  SLUICE_CHECK(spec_.causal || first == 0);
  if (first + n_tokens > std::min(cache.capacity(), context_))
    throw Error(fmt::format("{} tokens do not fit a context of {}", first + n_tokens,
                            std::min(cache.capacity(), context_)),
                "a larger --context, if the model has it, or a shorter text");
  if (first > 0 && cache.needs_whole_sequence())
    throw Error("attention paper looks at later tokens and cannot go on from earlier ones",
                "--attention keys or copy, which are causal");
  for (const int32_t token : tokens)
    if (token < 0 || token >= spec_.vocab)
      throw Error(
          fmt::format("token {} is not in the model's vocabulary of {}", token, spec_.vocab),
          "are tokenizer and weights from one checkpoint?");
}

ConstTensor Model::forward(std::span<const int32_t> tokens, KvCache& cache) {
  check_tokens(tokens, cache);
  const auto n_rows = static_cast<int64_t>(tokens.size());
  workspace_.resize(*backend_, own_block_shape(), n_rows);
  KvCache* const caches[] = {&cache};
  if (receives())
    stage_->receive(*backend_, workspace_.residual(), caches);
  else
    embed(tokens, cache.n_batch(), cache.length());
  const ConstTensor hidden = run_layers(0, n_rows, cache);
  send_on(caches);
  return hidden;
}

// A dense layer's key and value are left where the next pass puts its own.
ConstTensor Model::forward_exact(std::span<const int32_t> tokens, KvCache& cache) {
  check_tokens(tokens, cache);
  const int64_t n_rows = cache.n_batch();
  SLUICE_CHECK(ranks() == nullptr && spec_.causal && std::ssize(tokens) == n_rows);
  SLUICE_CHECK(cache.plan().audited && cache.plan().keeps_every_key());
  workspace_.resize(*backend_, own_block_shape(), n_rows);
  embed(tokens, n_rows, cache.length());
  if (spec_.position == PositionKind::kRotary) reach(cache.length() + 1);
  const Tensor hidden = grown(*backend_, hidden_, backend_->compute_dtype(), n_rows, spec_.d_model);
  if (can_record(cache))
    run_step(true, hidden, cache);
  else
    run_blocks({.exact = true}, hidden, cache);
  return hidden;
}

ConstTensor Model::forward_from(int64_t first_layer, ConstTensor residual, KvCache& cache) {
  const int64_t n_rows = residual.rows();
  SLUICE_CHECK(ranks() == nullptr && cache.length() == 0);
  SLUICE_CHECK(first_layer >= 0 && first_layer < spec_.n_layers);
  SLUICE_CHECK(n_rows % cache.n_batch() == 0 && n_rows / cache.n_batch() <= cache.capacity());
  workspace_.resize(*backend_, own_block_shape(), n_rows);
  std::vector<int32_t> all(static_cast<size_t>(n_rows));
  std::iota(all.begin(), all.end(), 0);
  backend_->gather_rows(residual, all, workspace_.residual());
  return run_layers(first_layer, n_rows, cache);
}

ConstTensor Model::run_layers(int64_t first_layer, int64_t n_rows, KvCache& cache) {
  const int64_t n_tokens = n_rows / cache.n_batch();
  if (spec_.position == PositionKind::kRotary) reach(cache.length() + n_tokens);
  const Tensor hidden = grown(*backend_, hidden_, backend_->compute_dtype(), n_rows, spec_.d_model);
  if (first_layer == 0 && n_tokens == 1 && can_record(cache))
    run_step(false, hidden, cache);
  else
    run_blocks({.first_layer = first_layer, .n_tokens = n_tokens}, hidden, cache);
  cache.advance(n_tokens);
  return hidden;
}

void Model::run_blocks(const Pass& pass, const Tensor& hidden, KvCache& cache) {
  const BlockShape shape = own_block_shape();
  for (int64_t layer = std::max(pass.first_layer, layers_.begin); layer < layers_.end; ++layer) {
    const RotaryTables& rotary = rotary_of(layer);
    run_block(*backend_, shape, weights_.blocks[static_cast<size_t>(layer)],
              {.layer = layer,
               .n_tokens = pass.n_tokens,
               .first_position = cache.length(),
               .cache = cache.layer(layer),
               .accelerated = cache.accelerated(layer),
               .cosine = rotary.cosine.view(),
               .sine = rotary.sine.view(),
               .observer = &observer_,
               .linear_observer = &linear_observer_,
               .times = &cache.times(layer),
               .timed_device = cache.waits_to_time() ? backend_.get() : nullptr,
               .gates = pass.exact ? nullptr : cache.gates(layer),
               .exact = pass.exact,
               .ranks = share_.get()},
              workspace_);
  }
  final_norm(hidden);
}

void Model::final_norm(const Tensor& hidden) {
  if (!has_last_layer()) return;
  if (weights_.final_norm.exists)
    weights_.final_norm.run(*backend_, workspace_.residual(), hidden);
  else
    backend_->convert(workspace_.residual(), hidden);
}

void Model::reach(int64_t n_positions) {
  const int64_t n_made = rotary_.cosine.defined() ? rotary_.cosine.view().rows() : 0;
  if (n_positions <= n_made) return;
  const int64_t n = std::min(context_, std::max(n_positions, 2 * n_made));
  if (spec_.local_rotary)
    local_rotary_ = make_rotary_tables(*spec_.local_rotary, context_, n, *backend_);
  rotary_ = make_rotary_tables(spec_.rotary, context_, n, *backend_);
}

void check_head(bool has_head) {
  if (!has_head)
    throw Error("this checkpoint has no output head, only hidden states",
                "use the variant saved with its language-model head");
}

void Model::logits(ConstTensor hidden, Tensor out) {
  if (!has_last_layer()) return;
  check_head(has_head());
  const int64_t n_rows = hidden.rows();
  SLUICE_CHECK(out.shape() == (Shape{n_rows, spec_.vocab}) && out.dtype() == DType::kF32);
  if (weights_.head_transform != nullptr) {
    const Tensor x = grown(*backend_, transformed_, backend_->compute_dtype(), n_rows,
                           weights_.head_transform->n_out());
    backend_->linear({.weights = weights_.head_transform.get(),
                      .x = hidden,
                      .activation = spec_.head_activation,
                      .out = x});
    if (weights_.head_norm.exists) weights_.head_norm.run(*backend_, x, x);
    hidden = x;
  }
  const bool in_place = share_ == nullptr && backend_->device() == out.device();
  const Tensor scores =
      in_place ? out : grown(*backend_, scores_, DType::kF32, n_rows, weights_.head->n_out());
  backend_->linear({.weights = weights_.head.get(), .x = hidden, .out = scores});
  if (spec_.logit_cap > 0) backend_->soft_cap(spec_.logit_cap, scores);
  if (share_ != nullptr) return share_->bring_scores(*backend_, scores, out);
  if (!in_place) backend_->download(scores, out);
}

}  // namespace sluice::impl
