#include "attention_layer.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/cpu/gemm/gemm.h"
#include "layer/parts.h"

namespace sluice::impl::bench {
namespace {

// Clusters around random directions, whose cosines are near 0. Members have cosines from 0.995
// down to 0.76 with their centre, and tau 0.5 asks for 0.75, so some pairs are close calls and a
// few tokens fall out of their cluster.
constexpr double kTau = 0.5;
constexpr float kLeastNoise = 0.1f, kMostNoise = 0.86f;
// Of the representatives, this share is missing in the set that is inherited, and as many other
// tokens stand in it: turnover is about twice this.
constexpr double kUnlike = 0.025;

MatrixSource random_source(int64_t n_out, int64_t n_in, uint32_t seed) {
  MatrixSource source;
  source.n_out = n_out;
  source.n_in = n_in;
  source.read_rows = [n_in, seed](int64_t begin, int64_t end, float* out) {
    std::mt19937 random(seed + static_cast<uint32_t>(begin));
    for (int64_t i = 0; i < (end - begin) * n_in; ++i)
      out[i] = (static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f) * 0.1f;
  };
  return source;
}

void fill_random(Backend& backend, const Tensor& to, uint32_t seed) {
  Buffer rows = host_buffer(DType::kF32, {to.rows(), to.row_elements()});
  random_source(to.rows(), to.row_elements(), seed)
      .read_rows(0, to.rows(), rows.view().data<float>());
  backend.convert(rows.view(), to);
}

// Representatives at even distances; every other token joins a random earlier cluster. Returns
// the set that a layer before might have had.
std::vector<uint8_t> plant(const AttentionCase& c, const Tensor& to) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> noise(kLeastNoise, kMostNoise);
  std::uniform_real_distribution<double> uniform;
  const double share = static_cast<double>(c.n_reps) / static_cast<double>(c.n_tokens);
  std::vector<int64_t> centres;  // token of each cluster
  std::vector<uint8_t> inherited;
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    float* row = to.row<float>(t);
    const bool is_new = t == 0 || t * c.n_reps / c.n_tokens > (t - 1) * c.n_reps / c.n_tokens;
    const double unlike = is_new ? kUnlike : kUnlike * share / (1 - share);
    inherited.push_back(is_new != (uniform(random) < unlike) ? 1 : 0);
    if (is_new) centres.push_back(t);
    const float* centre = to.row<float>(centres[random() % centres.size()]);
    const float size = noise(random);
    for (int64_t i = 0; i < c.d_model; ++i)
      row[i] = is_new ? normal(random) : centre[i] + size * normal(random);
  }
  return inherited;
}

}  // namespace

struct AttentionLayer::Weights {
  std::unique_ptr<LinearWeights> qkv, out, gram;
};

AttentionFlops attention_flops(const AttentionCase& c, int64_t n_reps) {
  const auto t = static_cast<double>(c.n_tokens), d = static_cast<double>(c.d_model);
  const auto r = static_cast<double>(n_reps);
  const double share = c.causal ? 0.5 : 1;  // of all pairs that a mask leaves
  AttentionFlops flops{};
  flops.dense = 4 * d * t * t * share;
  flops.reps = 4 * d * r * r * share;
  // Far clusters up to the border and the near range behind it; at even spread a border at f has
  // f * r / t clusters before it.
  double keys = 0;
  for (int64_t q = 0; q < c.n_tokens; ++q) {
    const int64_t border = c.causal ? near_border(q, c.window, c.block) : 0;
    keys +=
        c.causal ? static_cast<double>(border) * r / t + static_cast<double>(q - border + 1) : r;
  }
  flops.keys = 4 * d * keys;
  flops.select = 2 * d * t * r * share;
  flops.project = 8 * d * d * t;
  flops.project_reps = 8 * d * d * r;
  return flops;
}

AttentionLayer::AttentionLayer(const AttentionCase& c)
    : c_(c),
      backend_(make_cpu_backend(c.dtype)),
      bf16_(make_cpu_backend(cpu::gemm::kernel_bfmmla() != nullptr ? DType::kBF16 : c.dtype)),
      weights_(std::make_shared<Weights>()) {
  const int64_t t = c.n_tokens, d = c.d_model, n_heads = d / c.head_dim;
  Backend& b = *backend_;
  residual_ = b.allocate(DType::kF32, {t, d});
  inherited_ = plant(c, residual_.view());
  rows_ = b.allocate(c.dtype, {t, d});
  b.convert(residual_.view(), rows_.view());
  qkv_ = b.allocate(c.dtype, {t, 3 * d});
  attended_ = b.allocate(c.dtype, {t, d});
  out_ = b.allocate(DType::kF32, {t, d});
  gathered_ = b.allocate(c.dtype, {t, d});
  key_cache_ = b.allocate(c.dtype, {1, n_heads, t, c.head_dim});
  value_cache_ = b.allocate(c.dtype, {1, n_heads, t, c.head_dim});
  weights_->qkv = b.pack_linear(random_source(3 * d, d, 1));
  weights_->out = b.pack_linear(random_source(d, d, 2));
  fill_random(b, qkv_.view(), 3);
  const DType gram_dtype = bf16_->compute_dtype();
  weights_->gram = bf16_->pack_linear(random_source(1024, d, 4));
  gram_x_ = bf16_->allocate(gram_dtype, {t, d});
  gram_out_ = bf16_->allocate(DType::kF32, {t, 1024});
  fill_random(*bf16_, gram_x_.view(), 5);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim)));
  selector_ = b.make_selector({.rule = SelectRule::kCascadeCover,
                               .owner = c.causal ? OwnerKind::kEarlier : OwnerKind::kAnywhere,
                               .taus = {kTau},
                               .d_model = d});
  keys_ = b.make_keys_attention({.n_heads = n_heads,
                                 .n_kv_heads = n_heads,
                                 .head_dim = c.head_dim,
                                 .dtype = c.dtype,
                                 .scale = scale,
                                 .causal = c.causal,
                                 .window = c.window,
                                 .block = c.block,
                                 .heads = std::vector<HeadKeys>(static_cast<size_t>(n_heads))});
  reps_ = b.make_reps_attention({.n_heads = n_heads,
                                 .n_kv_heads = n_heads,
                                 .head_dim = c.head_dim,
                                 .dtype = c.dtype,
                                 .scale = scale,
                                 .causal = c.causal});
}

void AttentionLayer::dense() {
  const int64_t d = c_.d_model, n_heads = d / c_.head_dim;
  const KvView cache{key_cache_.view(), value_cache_.view()};
  backend_->store_kv({.keys = heads_of(qkv_.view(), d, n_heads, c_.head_dim),
                      .values = heads_of(qkv_.view(), 2 * d, n_heads, c_.head_dim),
                      .n_tokens = c_.n_tokens,
                      .first_position = 0,
                      .cache = cache});
  backend_->attend_dense(
      {.queries = heads_of(qkv_.view(), 0, n_heads, c_.head_dim),
       .cache = cache,
       .n_tokens = c_.n_tokens,
       .first_position = 0,
       .causal = c_.causal,
       .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c_.head_dim))),
       .out = heads_of(attended_.view(), 0, n_heads, c_.head_dim)});
}

void AttentionLayer::select() {
  selector_->reset();
  selector_->extend(
      {.rows = rows_.view(), .residual = residual_.view(), .inherited = {inherited_}});
}

void AttentionLayer::keys() {
  const int64_t d = c_.d_model, n_heads = d / c_.head_dim;
  keys_->reset();
  keys_->attend({.queries = heads_of(qkv_.view(), 0, n_heads, c_.head_dim),
                 .keys = heads_of(qkv_.view(), d, n_heads, c_.head_dim),
                 .values = heads_of(qkv_.view(), 2 * d, n_heads, c_.head_dim),
                 .sets = selector_->sets(),
                 .out = heads_of(attended_.view(), 0, n_heads, c_.head_dim)});
}

void AttentionLayer::project() {
  backend_->linear({.weights = weights_->qkv.get(), .x = rows_.view(), .out = qkv_.view()});
  backend_->linear({.weights = weights_->out.get(),
                    .x = attended_.view(),
                    .accumulate = true,
                    .out = out_.view()});
}

void AttentionLayer::copy() {
  const TokenSet& set = selector_->sets()[0];
  std::vector<int32_t> own;
  for (int64_t t = 0; t < c_.n_tokens; ++t)
    if (set.status[static_cast<size_t>(t)] != TokenStatus::kRedundant)
      own.push_back(static_cast<int32_t>(t));
  const auto n = static_cast<int64_t>(own.size());
  const int64_t d = c_.d_model, n_heads = d / c_.head_dim;
  const Tensor x = gathered_.view().rows_from(0, n), qkv = qkv_.view().rows_from(0, n);
  const Tensor attended = attended_.view().rows_from(0, n);
  backend_->gather_rows(rows_.view(), own, x);
  backend_->linear({.weights = weights_->qkv.get(), .x = x, .out = qkv});
  reps_->reset();
  reps_->attend({.queries = heads_of(qkv, 0, n_heads, c_.head_dim),
                 .keys = heads_of(qkv, d, n_heads, c_.head_dim),
                 .values = heads_of(qkv, 2 * d, n_heads, c_.head_dim),
                 .set = &set,
                 .first_token = 0,
                 .out = heads_of(attended, 0, n_heads, c_.head_dim)});
  const Tensor projected = out_.view().rows_from(0, n);
  backend_->linear({.weights = weights_->out.get(), .x = attended, .out = projected});
  backend_->add_rows(projected, set.cluster, residual_.view());
}

void AttentionLayer::bare_gram() {
  bf16_->linear({.weights = weights_->gram.get(), .x = gram_x_.view(), .out = gram_out_.view()});
}

double AttentionLayer::bare_gram_flops(const AttentionCase& c) {
  return 2.0 * 1024 * static_cast<double>(c.n_tokens) * static_cast<double>(c.d_model);
}

int64_t AttentionLayer::n_reps() const { return selector_->sets()[0].n_clusters; }
int64_t AttentionLayer::products() const { return selector_->products(); }

}  // namespace sluice::impl::bench
