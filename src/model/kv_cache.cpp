#include "model/kv_cache.h"

#include <algorithm>
#include <atomic>

namespace sluice::impl {
namespace {

std::atomic<uint64_t> n_caches = 0;

}  // namespace

KvCache::KvCache(const ModelSpec& spec, Backend& backend, int64_t n_batch, int64_t capacity,
                 CacheLayers layers)
    : id_(++n_caches),
      range_(layers.range),
      plan_(std::move(layers.plan)),
      n_batch_(n_batch),
      capacity_(capacity),
      exact_token_bytes_(bytes_needed(spec, backend.compute_dtype(), n_batch, 1) / spec.n_layers),
      int8_token_bytes_(bytes_needed(spec, backend.compute_dtype(), n_batch, 1, CacheKind::kInt8) /
                        spec.n_layers),
      layers_(static_cast<size_t>(spec.n_layers)),
      gates_(std::move(layers.gates)),
      times_(static_cast<size_t>(spec.n_layers)) {
  const auto& bases = layers.bases;
  SLUICE_CHECK(gates_.empty() || static_cast<int64_t>(gates_.size()) == spec.n_layers);
  SLUICE_CHECK(bases.empty() || static_cast<int64_t>(bases.size()) == spec.n_layers);
  const Shape shape = {n_batch, spec.n_kv_heads, capacity, spec.head_dim};
  LayerAttention* above = make_inherited(backend);
  for (int64_t index = range_.begin; index < range_.end; ++index) {
    Layer& layer = layers_[static_cast<size_t>(index)];
    const LayerPlan of_layer =
        plan_.layers.empty() ? LayerPlan{} : plan_.layers[static_cast<size_t>(index)];
    if (of_layer.mode == AttentionMode::kDense) {
      backend.check_cache(of_layer.cache);
      const bool int8 = of_layer.cache == CacheKind::kInt8;
      for (Buffer* rows : {&layer.keys, &layer.values})
        *rows = backend.allocate(int8 ? DType::kI8 : backend.compute_dtype(), shape);
      for (Buffer* scales : {&layer.key_scales, &layer.value_scales})
        if (int8) *scales = backend.allocate(DType::kF32, {n_batch, spec.n_kv_heads, capacity});
    } else {
      const AttentionShape attention{
          .d_model = spec.d_model,
          .n_heads = spec.n_heads,
          .n_kv_heads = spec.n_kv_heads,
          .head_dim = spec.head_dim,
          .causal = spec.causal,
          .scale = spec.attention_scale(index),
          .keeps_all = plan_.audited,
          .first_kv_head = layers.first_kv_head,
          .basis = bases.empty() ? nullptr : bases[static_cast<size_t>(index)]};
      layer.accelerated =
          std::make_unique<LayerAttention>(backend, of_layer, attention, n_batch, capacity, above);
      if (layer.accelerated->plan().selects()) above = layer.accelerated.get();
    }
  }
  const auto selects = [](const LayerPlan& layer) { return layer.selects(); };
  if (!plan_.layers.empty() &&
      std::any_of(plan_.layers.begin() + range_.end, plan_.layers.end(), selects))
    handed_ = above;
}

LayerAttention* KvCache::make_inherited(Backend& backend) {
  const LayerPlan *above = nullptr, *chooser = nullptr;
  for (size_t i = 0; i < std::min(plan_.layers.size(), static_cast<size_t>(range_.begin)); ++i) {
    const LayerPlan& layer = plan_.layers[i];
    if (!layer.selects()) continue;
    above = &layer;
    if (!layer.reuse) chooser = &layer;
  }
  const auto selects = [](const LayerPlan& layer) { return layer.selects(); };
  if (above == nullptr ||
      std::none_of(plan_.layers.begin() + range_.begin, plan_.layers.end(), selects))
    return nullptr;
  inherited_ = std::make_unique<LayerAttention>(backend, *above, chooser->taus(), n_batch_);
  return inherited_.get();
}

std::vector<std::byte> KvCache::hand_down() {
  Packer out;
  for (int64_t batch = 0; batch < n_batch_; ++batch) handed_->hand_down(batch, out);
  return out.take();
}

void KvCache::take_over(std::span<const std::byte> sets) {
  Unpacker in(sets);
  for (int64_t batch = 0; batch < n_batch_; ++batch) inherited_->take_over(batch, in);
  SLUICE_CHECK(in.at_end());
}

void KvCache::advance(int64_t n_tokens) {
  SLUICE_CHECK(n_tokens >= 0 && length_ + n_tokens <= capacity_);
  length_ += n_tokens;
}

void KvCache::truncate(int64_t length) {
  SLUICE_CHECK(length >= 0 && length <= length_);
  SLUICE_CHECK(length == 0 || length == length_ || all_dense());
  if (length == 0) {
    if (inherited_ != nullptr) inherited_->reset();
    for (Layer& layer : layers_)
      if (layer.accelerated != nullptr) layer.accelerated->reset();
    for (LinearGates& gates : gates_)
      for (const auto& gate : gates)
        if (gate != nullptr) gate->reset();
  }
  length_ = length;
}

void KvCache::set_delta_factor(double factor) {
  for (const Layer& layer : layers_)
    if (layer.accelerated != nullptr && layer.accelerated->plan().mode == AttentionMode::kRefine)
      for (int64_t batch = 0; batch < n_batch_; ++batch)
        layer.accelerated->refine(batch).set_delta_factor(factor);
}

bool KvCache::can_record() const {
  const auto layer_can = [](const Layer& layer) {
    return layer.accelerated == nullptr || layer.accelerated->can_record();
  };
  return std::all_of(layers_.begin(), layers_.end(), layer_can) &&
         std::all_of(gates_.begin(), gates_.end(), [](const LinearGates& gates) {
           return std::all_of(gates.begin(), gates.end(), [](const auto& gate) {
             return gate == nullptr || gate->can_record();
           });
         });
}

void KvCache::expect_token() {
  for (const Layer& layer : layers_)
    if (layer.accelerated != nullptr) layer.accelerated->expect_token();
  for (const LinearGates& gates : gates_)
    for (const auto& gate : gates)
      if (gate != nullptr) gate->expect();
}

bool KvCache::needs_whole_sequence() const {
  return std::any_of(plan_.layers.begin(), plan_.layers.end(),
                     [](const LayerPlan& layer) { return layer.mode == AttentionMode::kPaper; });
}

KvView KvCache::layer(int64_t index) const {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  return {layer.keys.view(), layer.values.view(), layer.key_scales.view(),
          layer.value_scales.view()};
}

LayerAttention* KvCache::accelerated(int64_t index) const {
  return layers_[static_cast<size_t>(index)].accelerated.get();
}

const Selector* KvCache::selector(int64_t layer, int64_t batch) const {
  LayerAttention* attention = accelerated(layer);
  if (attention == nullptr || !attention->plan().selects()) return nullptr;
  return attention->has_tau(batch) ? &attention->decided(batch) : nullptr;
}

LinearGates* KvCache::gates(int64_t layer) {
  return gates_.empty() ? nullptr : &gates_[static_cast<size_t>(layer)];
}

const LinearGate* KvCache::gate(int64_t layer, BasisInput input) const {
  return gates_.empty() ? nullptr
                        : gates_[static_cast<size_t>(layer)][static_cast<size_t>(input)].get();
}

LayerTimes KvCache::all_times() const {
  LayerTimes sum;
  for (const LayerTimes& times : times_) sum += times;
  return sum;
}

void KvCache::reset_times() { std::fill(times_.begin(), times_.end(), LayerTimes{}); }

CacheMemory KvCache::memory() const {
  const int64_t dense_layer = length_ * exact_token_bytes_;
  CacheMemory memory{.n_tokens = length_, .bytes = {}, .dense_bytes = 0};
  for (int64_t index = range_.begin; index < range_.end; ++index) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    memory.dense_bytes += dense_layer;
    if (layer.accelerated != nullptr)
      memory.bytes += layer.accelerated->bytes();
    else
      memory.bytes.keys_values.exact +=
          layer.key_scales.defined() ? length_ * int8_token_bytes_ : dense_layer;
  }
  return memory;
}

int64_t KvCache::bytes_needed(const ModelSpec& spec, DType dtype, int64_t n_batch, int64_t capacity,
                              CacheKind kind) {
  const bool int8 = kind == CacheKind::kInt8;
  const int64_t rows = checked_mul(checked_mul(n_batch, capacity), spec.n_layers);
  const int64_t scales = int8 ? spec.n_kv_heads * element_bytes(DType::kF32) : 0;
  const int64_t row =
      checked_mul(spec.kv_width(), element_bytes(int8 ? DType::kI8 : dtype)) + scales;
  return checked_mul(rows, 2 * row);
}

}  // namespace sluice::impl
