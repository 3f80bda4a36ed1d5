// Dense attention, over caches that together are larger than the second-level cache.
//
// Keys: "heads": [{"n_heads", "n_kv_heads", "head_dim"}], "n_tokens": [], "decode": true (one query
// behind so many keys; without it as many queries as keys, causal and not).

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/linear/linear.h"
#include "cuda/case.h"
#include "cuda/timing.h"

namespace sluice::impl::bench {
namespace {

using cuda::linear::DeviceMatrix;

constexpr int64_t kMostHeads = 1024, kMostHeadDim = 1024;

struct Heads {
  int64_t n_heads, n_kv_heads, head_dim;
};
Heads read_heads(const ConfigReader& keys) {
  const Heads h = {keys.require_int("n_heads", 1, kMostHeads),
                   keys.require_int("n_kv_heads", 1, kMostHeads),
                   keys.require_int("head_dim", 1, kMostHeadDim)};
  if (h.n_heads % h.n_kv_heads != 0) keys.refuse("n_kv_heads", "a divisor of n_heads");
  return h;
}

// What the runs of one shape read and write; consecutive ones take another cache.
struct Inputs {
  Inputs(const std::shared_ptr<cuda::Context>& on, const Heads& heads, int64_t keys_, bool decode)
      : context(on),
        h(heads),
        n_keys(keys_),
        n_rows(decode ? 1 : keys_),
        queries(random_matrix(on, DType::kBF16, n_rows, width(), 1)),
        out(on, DType::kBF16, n_rows, width()) {
    const auto n_caches = decode ? static_cast<uint32_t>(1 + 2 * kCacheBytes / kv_bytes()) : 1u;
    for (uint32_t i = 0; i < n_caches; ++i) {
      keys.push_back(random_matrix(on, DType::kBF16, h.n_kv_heads * n_keys, h.head_dim, 2u + i));
      values.push_back(random_matrix(on, DType::kBF16, h.n_kv_heads * n_keys, h.head_dim, 30u + i));
    }
  }
  int64_t width() const { return h.n_heads * h.head_dim; }
  int64_t kv_bytes() const { return 4 * h.n_kv_heads * n_keys * h.head_dim; }
  Tensor heads_of(const DeviceMatrix& rows) const {
    return Tensor(rows.padded.bytes(), DType::kBF16, {n_rows, h.n_heads, h.head_dim},
                  Device::kCuda);
  }
  void attend(int round, bool causal) const {
    const size_t i = static_cast<size_t>(round) % keys.size();
    const Shape cache = {1, h.n_kv_heads, n_keys, h.head_dim};
    cuda::dense::attend_dense(
        *context, {.queries = heads_of(queries),
                   .cache = {Tensor(keys[i].padded.bytes(), DType::kBF16, cache, Device::kCuda),
                             Tensor(values[i].padded.bytes(), DType::kBF16, cache, Device::kCuda)},
                   .n_tokens = n_rows,
                   .first_position = n_keys - n_rows,
                   .causal = causal,
                   .scale = 1 / std::sqrt(static_cast<float>(h.head_dim)),
                   .out = heads_of(out)});
  }

  std::shared_ptr<cuda::Context> context;
  Heads h;
  int64_t n_keys, n_rows;
  DeviceMatrix queries, out;
  std::vector<DeviceMatrix> keys, values;
};

void run_shape(CudaCase& c, const Inputs& in, bool causal) {
  const bool decode = in.n_rows == 1;
  const Timing t = time_runs(*in.context, c.rounds(in.n_rows >= 32768 ? 7 : kUsualRounds),
                             [&](int round) { in.attend(round, causal); });
  const double pairs = static_cast<double>(in.n_rows) * static_cast<double>(in.n_keys) *
                       (causal && !decode ? 0.5 : 1.0);
  const double gflops = 4 * pairs * static_cast<double>(in.width()) / t.median * 1e-6;
  const double gb = static_cast<double>(in.kv_bytes()) / t.median * 1e-6;
  const std::string heads = fmt::format("{}/{}", in.h.n_heads, in.h.n_kv_heads);
  c.table().row({fmt::format("{}", in.n_rows), fmt::format("{}", in.n_keys), heads,
                 fmt::format("{}", in.h.head_dim), causal ? "causal" : "all keys",
                 fmt::format("{:.1f}", 1e3 * t.median), fmt::format("{:.2f}", t.spread),
                 fmt::format("{:.1f}", 1e-3 * gflops), fmt::format("{:.2f}", 1e-3 * gb)});
  c.record(fmt::format("{} x {} T{}", heads, in.h.head_dim, in.n_keys),
           decode   ? "dense, decode"
           : causal ? "dense"
                    : "dense, all keys",
           t,
           {{"n_tokens", in.n_keys},
            {"n_heads", in.h.n_heads},
            {"n_kv_heads", in.h.n_kv_heads},
            {"head_dim", in.h.head_dim},
            {"tokens_per_s", 1e3 * static_cast<double>(in.n_rows) / t.median},
            {"gflops", gflops},
            {"gb_per_s", gb}});
}

}  // namespace

void run_dense_attention(CudaCase& c) {
  const bool decode = c.keys().bool_or("decode", false);
  const std::vector<int64_t> lengths = integers(c.keys(), "n_tokens", 1, kMostTokens);
  c.table().columns(
      {"queries", "keys", "heads", "head size", "", "us", "spread", "TFLOP/s", "TB/s"});
  for (const ConfigReader& heads : c.objects("heads"))
    for (const int64_t n_keys : lengths) {
      const Inputs in(c.context(), read_heads(heads), n_keys, decode);
      run_shape(c, in, true);
      if (!decode) run_shape(c, in, false);
    }
}

}  // namespace sluice::impl::bench
