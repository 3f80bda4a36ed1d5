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
// Tokens that there is room for behind those that are there; a quarter of them where that is more.
constexpr int64_t kSpareTokens = 1024;

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

// The first tokens of every head of a cache, a row to a head.
impl::Tensor first_tokens(const impl::Tensor& cache, int64_t n_tokens) {
  const impl::Shape& shape = cache.shape();  // (1, n_kv_heads, room, head_dim)
  return cache.reshaped({shape[1], shape[2] * shape[3]}).columns_from(0, n_tokens * shape[3]);
}

}  // namespace

struct AttentionReads::State {
  std::vector<double> n_read;  // (n_heads), those of opened clusters left out
  double n_dense;              // keys that dense attention reads, the same for every head
  std::function<std::vector<int64_t>()> opened;  // (n_segments, n_heads)
};

struct Attention::State {
  AttentionShape shape;
  AttentionDevice device;
  float scale;
  impl::LayerPlan plan;
  impl::Buffer keys = {}, values = {};                 // dense: (1, n_kv_heads, room, head_dim)
  std::unique_ptr<impl::RefineAttention> refine = {};  // or this
  int64_t room = 0, length = 0;                        // tokens
  std::vector<double> n_read = {};                     // as AttentionReads has them
  double n_dense = 0;

  impl::Backend& backend() const { return *Access::of(device).backend; }
  int64_t query_width() const { return shape.n_heads * shape.head_dim; }
  int64_t kv_width() const { return shape.n_kv_heads * shape.head_dim; }
  void check_room(int64_t n) const;
  void check(const DeviceTokens& tokens) const;
  // The caller's rows, (n, n_heads, head_dim).
  template <bool kConst, typename Data>
  impl::BasicTensor<kConst> rows(Data data, int64_t n, int64_t n_heads, int64_t stride) const;
  // (n, n_heads, head_dim) on the device in the compute dtype.
  impl::Buffer taken_in(std::span<const float> host, int64_t n_heads) const;
  void give_out(const impl::Tensor& from, std::span<float> to) const;
  void reserve(int64_t n_tokens);
  void attend(const impl::AttendRefineArgs& args);
  void append(const DeviceTokens& tokens);
  void count(int64_t n);
  static std::unique_ptr<State> make(const AttentionShape& shape, impl::LayerPlan plan,
                                     const AttentionDevice& device);
};

void Attention::State::check_room(int64_t n) const {
  if (n > shape.capacity - length)
    throw Error(
        fmt::format("{} tokens after {} do not fit a capacity of {}", n, length, shape.capacity),
        "a larger capacity");
}

void Attention::State::check(const DeviceTokens& tokens) const {
  if (tokens.n < 1) throw Error(fmt::format("{} are no tokens", tokens.n), "one or more");
  const auto bytes = static_cast<uintptr_t>(impl::element_bytes(backend().compute_dtype()));
  for (const void* data : {tokens.q, tokens.k, tokens.v, static_cast<const void*>(tokens.out)})
    if (data == nullptr || reinterpret_cast<uintptr_t>(data) % bytes != 0)
      throw Error("a tensor of the tokens is missing, or lies between two numbers",
                  "q, k, v and out in the dtype of the device");
  const auto fits = [](int64_t stride, int64_t width) { return stride == 0 || stride >= width; };
  if (!fits(tokens.q_stride, query_width()) || !fits(tokens.out_stride, query_width()) ||
      !fits(tokens.k_stride, kv_width()) || !fits(tokens.v_stride, kv_width()))
    throw Error("tokens overlap: a stride is shorter than the heads of a token",
                "0 for tokens that follow each other");
  check_room(tokens.n);
}

template <bool kConst, typename Data>
impl::BasicTensor<kConst> Attention::State::rows(Data data, int64_t n, int64_t n_heads,
                                                 int64_t stride) const {
  return impl::BasicTensor<kConst>(data, backend().compute_dtype(), {n, n_heads, shape.head_dim},
                                   backend().device())
      .with_row_stride(stride > 0 ? stride : n_heads * shape.head_dim);
}

impl::Buffer Attention::State::taken_in(std::span<const float> host, int64_t n_heads) const {
  const int64_t width = n_heads * shape.head_dim, n = std::ssize(host) / width;
  const impl::DType dtype = backend().compute_dtype();
  const impl::ConstTensor given(host.data(), impl::DType::kF32, {n, n_heads, shape.head_dim});
  impl::Buffer exact = backend().allocate(impl::DType::kF32, {n, n_heads, shape.head_dim});
  backend().upload(given, exact.view());
  if (dtype == impl::DType::kF32) return exact;
  impl::Buffer rounded = backend().allocate(dtype, {n, n_heads, shape.head_dim});
  backend().convert(exact.view().reshaped({n, width}), rounded.view().reshaped({n, width}));
  return rounded;
}

void Attention::State::give_out(const impl::Tensor& from, std::span<float> to) const {
  const impl::Shape rows{from.rows(), query_width()};
  const impl::Tensor host(to.data(), impl::DType::kF32, rows);
  if (from.dtype() == impl::DType::kF32) return backend().download(from.reshaped(rows), host);
  const impl::Buffer exact = backend().allocate(impl::DType::kF32, rows);
  backend().convert(from.reshaped(rows), exact.view());
  backend().download(exact.view(), host);
}

// Of dense attention; the other has memory of its own.
void Attention::State::reserve(int64_t n_tokens) {
  if (n_tokens <= room) return;
  const int64_t spare = std::max(kSpareTokens, n_tokens / 4);
  const int64_t more = std::min(shape.capacity, n_tokens + spare);
  const impl::Shape cache{1, shape.n_kv_heads, more, shape.head_dim};
  impl::Buffer larger[] = {backend().allocate(backend().compute_dtype(), cache),
                           backend().allocate(backend().compute_dtype(), cache)};
  if (length > 0) {
    backend().convert(first_tokens(keys.view(), length), first_tokens(larger[0].view(), length));
    backend().convert(first_tokens(values.view(), length), first_tokens(larger[1].view(), length));
  }
  keys = std::move(larger[0]);
  values = std::move(larger[1]);
  room = more;
}

void Attention::State::attend(const impl::AttendRefineArgs& args) {
  if (refine != nullptr) return refine->attend(args);
  const int64_t n = args.queries.rows();
  reserve(length + n);
  const impl::KvView cache{keys.view(), values.view()};
  backend().store_kv({.keys = args.keys,
                      .values = args.values,
                      .n_tokens = n,
                      .first_position = length,
                      .cache = cache});
  backend().attend_dense({.queries = args.queries,
                          .cache = cache,
                          .n_tokens = n,
                          .first_position = length,
                          .causal = true,
                          .scale = scale,
                          .out = args.out});
}

void Attention::State::append(const DeviceTokens& tokens) {
  const int64_t n = tokens.n, heads = shape.n_heads, kv_heads = shape.n_kv_heads;
  attend({.queries = rows<true>(tokens.q, n, heads, tokens.q_stride),
          .keys = rows<true>(tokens.k, n, kv_heads, tokens.k_stride),
          .values = rows<true>(tokens.v, n, kv_heads, tokens.v_stride),
          .out = rows<false>(tokens.out, n, heads, tokens.out_stride)});
  count(n);
  length += n;
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
                                                         impl::LayerPlan plan,
                                                         const AttentionDevice& device) {
  std::unique_ptr<State> made(new State{
      .shape = shape,
      .device = device,
      .scale = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<float>(shape.head_dim)),
      .plan = std::move(plan)});
  State& state = *made;
  impl::Backend& backend = state.backend();
  const auto current = Access::of(device).enter();
  backend.check_heads(shape.head_dim, shape.n_heads / shape.n_kv_heads);
  if (state.plan.mode != impl::AttentionMode::kRefine) return made;
  const impl::AttentionShape layer{.d_model = state.query_width(),
                                   .n_heads = shape.n_heads,
                                   .n_kv_heads = shape.n_kv_heads,
                                   .head_dim = shape.head_dim,
                                   .causal = true,
                                   .scale = state.scale};
  impl::RefineSpec spec =
      impl::refine_spec(state.plan, layer, backend.compute_dtype(), shape.capacity);
  spec.grows = true;
  state.refine = backend.make_refine_attention(spec);
  return made;
}

Attention::Attention(const AttentionShape& shape, const AttentionOptions& options, Device device,
                     DType dtype)
    : Attention(shape, options, AttentionDevice(device, dtype)) {}
Attention::Attention(const AttentionShape& shape, const Plan& plan, int64_t layer, Device device,
                     DType dtype)
    : Attention(shape, plan, layer, AttentionDevice(device, dtype)) {}
Attention::Attention(const AttentionShape& shape, const AttentionOptions& options,
                     const AttentionDevice& device)
    : state_(State::make(checked(shape), layer_plan_of(impl::api::uniform_of(options), shape),
                         device)) {}
Attention::Attention(const AttentionShape& shape, const Plan& plan, int64_t layer,
                     const AttentionDevice& device)
    : state_(State::make(checked(shape), layer_plan_of(plan, layer, shape), device)) {}
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
  state.check_room(n);
  const auto current = Access::of(state.device).enter();
  if (state.device.kind() != Device::kCuda && state.device.dtype() == DType::kF32)
    return state.append({.n = n, .q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()});
  const impl::Buffer queries = state.taken_in(q, state.shape.n_heads);
  const impl::Buffer keys = state.taken_in(k, state.shape.n_kv_heads);
  const impl::Buffer values = state.taken_in(v, state.shape.n_kv_heads);
  const impl::Buffer attended = state.backend().allocate(
      queries.view().dtype(), {n, state.shape.n_heads, state.shape.head_dim});
  state.append({.n = n,
                .q = queries.view().bytes(),
                .k = keys.view().bytes(),
                .v = values.view().bytes(),
                .out = attended.view().bytes()});
  state.give_out(attended.view(), out);
}

void Attention::append(const DeviceTokens& tokens) {
  state_->check(tokens);
  const auto current = Access::of(state_->device).enter();
  state_->append(tokens);
}

const AttentionShape& Attention::shape() const { return state_->shape; }
const AttentionDevice& Attention::device() const { return state_->device; }
bool Attention::is_dense() const { return state_->refine == nullptr; }
int64_t Attention::length() const { return state_->length; }
double Attention::keys_read() const { return reads().keys_read(); }
std::vector<double> Attention::keys_read_by_head() const { return reads().by_head(); }

AttentionReads Attention::reads() const {
  auto read = state_->n_read;
  read.resize(static_cast<size_t>(state_->shape.n_heads), 0);
  const bool counts = state_->refine != nullptr && state_->n_dense > 0;
  return AttentionReads(std::make_shared<AttentionReads::State>(
      AttentionReads::State{.n_read = std::move(read),
                            .n_dense = state_->n_dense,
                            .opened = counts ? state_->refine->opened_later() : nullptr}));
}

double AttentionReads::keys_read() const {
  const std::vector<double> read = by_head();
  return std::accumulate(read.begin(), read.end(), 0.0) / static_cast<double>(read.size());
}

std::vector<double> AttentionReads::by_head() const {
  std::vector<double> read = state_->n_read;
  if (!state_->opened) return std::vector<double>(read.size(), 1);
  const std::vector<int64_t> opened = state_->opened();
  for (size_t i = 0; i < opened.size(); ++i)
    read[i % read.size()] += static_cast<double>(opened[i]);
  for (double& keys : read) keys /= state_->n_dense;
  return read;
}

void Attention::clear() {
  const auto current = Access::of(state_->device).enter();
  if (state_->refine != nullptr) state_->refine->reset();
  state_->length = 0;
  state_->n_read.clear();
  state_->n_dense = 0;
}

}  // namespace sluice
