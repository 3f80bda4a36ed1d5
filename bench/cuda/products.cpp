// Dense products, over weights that together are larger than the second-level cache.
//
// Keys: "shapes": [{"n_in", "n_out"}], "rows": [].

#include <fmt/format.h>

#include <string>
#include <vector>

#include "backend/cuda/linear/linear.h"
#include "cuda/case.h"
#include "cuda/timing.h"

namespace sluice::impl::bench {
namespace {

using cuda::linear::DeviceMatrix;

struct What {
  const char* name;
  bool bias, accumulate;
  Activation activation;
  bool library = false;  // by cuBLASLt, where one of our own kernels would multiply
};
constexpr What kWhats[] = {{"plain", false, false, Activation::kNone},
                           {"plain, cuBLASLt", false, false, Activation::kNone, true},
                           {"bias, gelu tanh", true, false, Activation::kGeluTanh},
                           {"bias, relu", true, false, Activation::kRelu},
                           {"bias, into residual", true, true, Activation::kNone}};

class Products {
 public:
  Products(CudaCase& c, int64_t n_in, int64_t n_out, double copy)
      : c_(c),
        multiplier_(c.context()),
        library_(c.context(), false),
        n_in_(n_in),
        n_out_(n_out),
        copy_(copy),
        bias_(c.context(), std::vector<float>(static_cast<size_t>(n_out), 0.3f)) {
    const auto n_copies = static_cast<uint32_t>(1 + 2 * kCacheBytes / bytes());
    for (uint32_t i = 0; i < n_copies; ++i)
      weights_.push_back(random_matrix(c.context(), DType::kBF16, n_out, n_in, 7u + i));
  }

  void run(int64_t n_rows) {
    const DeviceMatrix x = random_matrix(c_.context(), DType::kBF16, n_rows, n_in_, 3);
    const DeviceMatrix narrow(c_.context(), DType::kBF16, n_rows, n_out_);
    const DeviceMatrix wide(c_.context(), DType::kF32, n_rows, n_out_);
    for (const What& what : kWhats) {
      if (what.library && n_rows > 1) continue;
      const Timing t = time_runs(*c_.context(), c_.rounds(kUsualRounds), [&](int round) {
        (what.library ? library_ : multiplier_)
            .run(weights_[static_cast<size_t>(round) % weights_.size()], what.bias ? bias_ : none_,
                 {.weights = nullptr,
                  .x = x.rows,
                  .activation = what.activation,
                  .accumulate = what.accumulate,
                  .out = what.accumulate ? wide.rows : narrow.rows});
      });
      report(n_rows, what.name, t);
    }
  }

 private:
  int64_t bytes() const { return 2 * n_in_ * n_out_; }
  void report(int64_t n_rows, const char* what, const Timing& t) {
    const double flops = 2.0 * static_cast<double>(n_rows * n_in_ * n_out_);
    const double rate = static_cast<double>(bytes()) / t.median * 1e-9;
    c_.table().row({fmt::format("{}", n_rows), fmt::format("{}", n_in_), fmt::format("{}", n_out_),
                    what, fmt::format("{:.1f}", 1e3 * t.median), fmt::format("{:.2f}", t.spread),
                    fmt::format("{:.1f}", flops / t.median * 1e-9), fmt::format("{:.2f}", rate),
                    fmt::format("{:.2f}", rate / copy_)});
    c_.record(fmt::format("{}x{} {} rows", n_in_, n_out_, n_rows), what, t,
              {{"n_tokens", n_rows},
               {"n_in", n_in_},
               {"n_out", n_out_},
               {"tokens_per_s", 1e3 * static_cast<double>(n_rows) / t.median},
               {"gflops", flops / t.median * 1e-6},
               {"gb_per_s", 1e3 * rate},
               {"baseline", "copy"},
               {"baseline_gb_per_s", 1e3 * copy_},
               {"share_of_baseline", rate / copy_}});
  }

  CudaCase& c_;
  cuda::linear::Multiplier multiplier_, library_;
  int64_t n_in_, n_out_;
  double copy_;  // TB/s
  cuda::linear::DeviceBias bias_, none_;
  std::vector<DeviceMatrix> weights_;
};

}  // namespace

void run_products(CudaCase& c) {
  const std::vector<int64_t> rows = integers(c.keys(), "rows", 1, kMostTokens);
  const double copy = copy_bandwidth(c.context());
  c.table().say(fmt::format("copy: {:.2f} TB/s read and written; reading alone: {:.2f} TB/s", copy,
                            read_bandwidth(c.context())));
  c.table().columns(
      {"rows", "inputs", "outputs", "what", "us", "spread", "TFLOP/s", "TB/s", "of copy"});
  for (const ConfigReader& shape : c.objects("shapes")) {
    Products products(c, shape.require_int("n_in", 1, kMostWidth),
                      shape.require_int("n_out", 1, kMostWidth), copy);
    for (const int64_t n_rows : rows) products.run(n_rows);
  }
}

}  // namespace sluice::impl::bench
