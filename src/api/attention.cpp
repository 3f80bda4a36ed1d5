#include "sluice/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "api/backends.h"
#include "api/state.h"
#include "eval/compare/refine_reads.h"
#include "layer/layer_attention.h"

namespace sluice {
namespace {

// Of every size, and of the elements of a cache: products stay far from 2^63.
constexpr int64_t kMostOfSize = int64_t{1} << 30;
constexpr int64_t kMostElements = int64_t{1} << 46;

const AttentionShape& checked(const AttentionShape& shape) {
  for (const int64_t size : {shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.capacity})
    if (size <= 0 || size > kMostOfSize)
      throw Error(fmt::format("{} is no size of attention", size),
                  "heads, head_dim and capacity of 1 or more");
  if (shape.n_heads % shape.n_kv_heads != 0)
    throw Error(fmt::format("{} query heads do not fall into {} equal groups", shape.n_heads,
                            shape.n_kv_heads),
                "n_kv_heads that divides n_heads");
  if (shape.n_heads > kMostElements / shape.head_dim / shape.capacity)
    throw Error("attention of this size does not fit any memory", "a smaller capacity");
  if (!(shape.scale >= 0) || std::isinf(shape.scale))
    throw Error("the scale of scores is out of range", "0 for 1 / sqrt(head_dim), or above");
  return shape;
}

impl::PlanShape one_layer(const AttentionShape& shape) {
  return {.n_layers = 1, .n_kv_heads = shape.n_kv_heads, .causal = true, .context = shape.capacity};
}

// Dense or `refine`, with a cache that this attention can keep.
impl::LayerPlan checked(const impl::LayerPlan& layer, const AttentionShape& shape) {
  if (layer.mode != impl::AttentionMode::kDense && layer.mode != impl::AttentionMode::kRefine)
    throw Error("keys and values alone are attended to densely or refined",
                "AttentionMode::kDense or kRefine");
  if (layer.mode == impl::AttentionMode::kDense && layer.cache != impl::CacheKind::kExact)
    throw Error("dense attention on keys and values alone keeps them as they are",
                "a plan without an int8 cache");
  impl::check_plan({.layers = {layer}}, one_layer(shape));
  return layer;
}

// All heads are alike.
impl::LayerPlan layer_plan_of(impl::UniformAttention choice, const AttentionShape& shape) {
  choice.from_layer = 0;
  return checked(impl::uniform_plan(choice, one_layer(shape)).layers.front(), shape);
}

impl::LayerPlan layer_plan_of(const Plan& plan, int64_t layer, const AttentionShape& shape) {
  const Plan::State* state = Access::of(plan).get();
  if (layer < 0) throw Error(fmt::format("there is no layer {}", layer), "layers count from 0");
  if (state == nullptr || (state->uniform && layer < state->uniform->from_layer)) return {};
  if (state->uniform) return layer_plan_of(*state->uniform, shape);
  const std::vector<impl::LayerPlan>& layers = state->file->plan.attention.layers;
  if (layers.empty()) return {};
  if (layer >= std::ssize(layers))
    throw Error(fmt::format("the plan has {} layers, and no layer {}", layers.size(), layer),
                "a plan that was made for this model");
  return checked(layers[static_cast<size_t>(layer)], shape);
}

}  // namespace

struct Attention::State {
  AttentionShape shape;
  float scale;
  impl::LayerPlan plan;
  std::unique_ptr<impl::Backend> backend;
  impl::Buffer keys, values;                      // dense: (1, n_kv_heads, capacity, head_dim)
  std::unique_ptr<impl::RefineAttention> refine;  // or this
  int64_t length = 0;
  std::vector<double> n_read = {};  // keys of each query head, those of opened clusters left out
  double n_dense = 0;               // keys that dense attention reads, the same for every head

  int64_t query_width() const { return shape.n_heads * shape.head_dim; }
  int64_t kv_width() const { return shape.n_kv_heads * shape.head_dim; }
  // (n, n_heads, head_dim) on the device in the compute dtype.
  impl::Buffer taken_in(std::span<const float> rows, int64_t n_heads) const;
  void attend(const impl::AttendRefineArgs& args);
  void give_out(const impl::Tensor& from, std::span<float> to) const;
  void count(int64_t n);
  static std::unique_ptr<State> make(const AttentionShape& shape, impl::LayerPlan plan,
                                     Device device, DType dtype);
};

impl::Buffer Attention::State::taken_in(std::span<const float> rows, int64_t n_heads) const {
  const int64_t width = n_heads * shape.head_dim, n = std::ssize(rows) / width;
  const impl::DType dtype = backend->compute_dtype();
  const impl::ConstTensor host(rows.data(), impl::DType::kF32, {n, n_heads, shape.head_dim});
  impl::Buffer exact = backend->allocate(impl::DType::kF32, {n, n_heads, shape.head_dim});
  backend->upload(host, exact.view());
  if (dtype == impl::DType::kF32) return exact;
  impl::Buffer rounded = backend->allocate(dtype, {n, n_heads, shape.head_dim});
  backend->convert(exact.view().reshaped({n, width}), rounded.view().reshaped({n, width}));
  return rounded;
}

void Attention::State::give_out(const impl::Tensor& from, std::span<float> to) const {
  const impl::Shape rows{from.rows(), query_width()};
  const impl::Tensor host(to.data(), impl::DType::kF32, rows);
  if (from.dtype() == impl::DType::kF32) return backend->download(from.reshaped(rows), host);
  const impl::Buffer exact = backend->allocate(impl::DType::kF32, rows);
  backend->convert(from.reshaped(rows), exact.view());
  backend->download(exact.view(), host);
}

void Attention::State::attend(const impl::AttendRefineArgs& args) {
  if (refine != nullptr) return refine->attend(args);
  const impl::KvView cache{keys.view(), values.view()};
  const int64_t n = args.queries.rows();
  backend->store_kv({.keys = args.keys,
                     .values = args.values,
                     .n_tokens = n,
                     .first_position = length,
                     .cache = cache});
  backend->attend_dense({.queries = args.queries,
                         .cache = cache,
                         .n_tokens = n,
                         .first_position = length,
                         .causal = true,
                         .scale = scale,
                         .out = args.out});
}

void Attention::State::count(int64_t n) {
  if (refine == nullptr) return;
  impl::LayerPlan pass = plan;
  if (n == 1) pass.refine.tile = 1;  // a query alone decides for itself
  const auto group = static_cast<size_t>(shape.n_heads / shape.n_kv_heads);
  n_read.resize(static_cast<size_t>(shape.n_heads), 0);
  for (size_t kv_head = 0; kv_head < plan.heads.size(); ++kv_head) {
    const impl::RefineKeys found = impl::refine_keys(pass, plan.heads[kv_head].kind, length, n);
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      n_read[head] += static_cast<double>(found.near + found.clusters);
    if (kv_head == 0) n_dense += static_cast<double>(found.dense);
  }
}

std::unique_ptr<Attention::State> Attention::State::make(const AttentionShape& shape,
                                                         impl::LayerPlan plan, Device device,
                                                         DType dtype) {
  std::unique_ptr<State> made(new State{
      .shape = shape,
      .scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<float>(shape.head_dim)),
      .plan = std::move(plan),
      .backend = impl::api::make_backend(device, dtype),
      .keys = {},
      .values = {},
      .refine = {}});
  State& state = *made;
  impl::Backend& backend = *state.backend;
  backend.check_heads(shape.head_dim, shape.n_heads / shape.n_kv_heads);
  const impl::DType stored = backend.compute_dtype();
  if (state.plan.mode == impl::AttentionMode::kRefine) {
    const impl::AttentionShape layer{.d_model = state.query_width(),
                                     .n_heads = shape.n_heads,
                                     .n_kv_heads = shape.n_kv_heads,
                                     .head_dim = shape.head_dim,
                                     .causal = true,
                                     .scale = state.scale};
    state.refine =
        backend.make_refine_attention(impl::refine_spec(state.plan, layer, stored, shape.capacity));
    return made;
  }
  const impl::Shape cache{1, shape.n_kv_heads, shape.capacity, shape.head_dim};
  state.keys = backend.allocate(stored, cache);
  state.values = backend.allocate(stored, cache);
  return made;
}

Attention::Attention(const AttentionShape& shape, const AttentionOptions& options, Device device,
                     DType dtype)
    : state_(State::make(checked(shape), layer_plan_of(impl::api::uniform_of(options), shape),
                         device, dtype)) {}
Attention::Attention(const AttentionShape& shape, const Plan& plan, int64_t layer, Device device,
                     DType dtype)
    : state_(State::make(checked(shape), layer_plan_of(plan, layer, shape), device, dtype)) {}
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;
Attention::~Attention() = default;

void Attention::append(std::span<const float> q, std::span<const float> k, std::span<const float> v,
                       std::span<float> out) {
  State& state = *state_;
  const int64_t n = std::ssize(q) / state.query_width();
  if (n == 0 || std::ssize(q) != n * state.query_width() || out.size() != q.size() ||
      std::ssize(k) != n * state.kv_width() || v.size() != k.size())
    throw Error(fmt::format("q, k, v and out of {}, {}, {} and {} numbers are no tokens of {} "
                            "query heads and {} key heads of {}",
                            q.size(), k.size(), v.size(), out.size(), state.shape.n_heads,
                            state.shape.n_kv_heads, state.shape.head_dim),
                "(n, n_heads, head_dim) for q and out, (n, n_kv_heads, head_dim) for k and v");
  if (n > state.shape.capacity - state.length)
    throw Error(fmt::format("{} tokens after {} do not fit a capacity of {}", n, state.length,
                            state.shape.capacity),
                "a larger capacity");
  const impl::Buffer queries = state.taken_in(q, state.shape.n_heads);
  const impl::Buffer keys = state.taken_in(k, state.shape.n_kv_heads);
  const impl::Buffer values = state.taken_in(v, state.shape.n_kv_heads);
  const impl::Buffer attended = state.backend->allocate(
      queries.view().dtype(), {n, state.shape.n_heads, state.shape.head_dim});
  state.attend({.queries = queries.view(),
                .keys = keys.view(),
                .values = values.view(),
                .out = attended.view()});
  state.give_out(attended.view(), out);
  state.count(n);
  state.length += n;
}

bool Attention::is_dense() const { return state_->refine == nullptr; }
int64_t Attention::length() const { return state_->length; }

double Attention::keys_read() const {
  const std::vector<double> read = keys_read_by_head();
  return std::accumulate(read.begin(), read.end(), 0.0) / static_cast<double>(read.size());
}

std::vector<double> Attention::keys_read_by_head() const {
  const auto n_heads = static_cast<size_t>(state_->shape.n_heads);
  if (state_->n_dense == 0) return std::vector<double>(n_heads, 1);
  std::vector<double> read = state_->n_read;
  const std::vector<int64_t> opened = state_->refine->opened();  // (n_segments, n_heads)
  for (size_t i = 0; i < opened.size(); ++i) read[i % n_heads] += static_cast<double>(opened[i]);
  for (double& keys : read) keys /= state_->n_dense;
  return read;
}

void Attention::clear() {
  if (state_->refine != nullptr) state_->refine->reset();
  state_->length = 0;
  state_->n_read.clear();
  state_->n_dense = 0;
}

}  // namespace sluice
