// The norms that selection starts from.

#include <functional>

#include "backend/cuda/selection/common/kernels.h"
#include "parity/select_cases.h"

namespace sluice::impl::test {
namespace {

// 1 / norm is part of what is defined, to the last bit, and near that where the order of a sum was
// not asked for: numbers of one size, of many, such that
// many sums are ties, that are mostly zeros, with a few large ones, and that f32 cannot square.
TEST_P(EveryBackend, NormsAreSummedInOrder) {
  const auto context = std::make_shared<cuda::Context>(0);
  std::mt19937 random(3);
  const auto number = [&] { return static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f; };
  const auto power = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
  };
  const std::vector<std::function<float()>> kinds = {
      [&] { return number(); },
      [&] { return std::ldexp(number(), power(-20, 20)); },
      [&] { return std::ldexp(1.0f, power(-28, 2)); },
      [&] { return std::ldexp(static_cast<float>(random() % 16), power(0, 2) == 0 ? 0 : -26); },
      [&] { return random() % 8 == 0 ? number() : 0.0f; },
      [&] { return random() % 1000 == 0 ? 1e3f * number() : number(); },
      [&] { return std::ldexp(number(), -70); },
      [&] { return std::ldexp(number(), power(-100, 100)); },
      [&] { return 1.0f; },
      [&] { return 0.0f; },
  };
  for (const int64_t d : {8, 64, 1000, 4096, 20000}) {
    SCOPED_TRACE(d);
    const int64_t n = 20 * static_cast<int64_t>(kinds.size());
    std::vector<float> values;
    for (int64_t row = 0; row < n; ++row)
      for (int64_t i = 0; i < d; ++i)
        values.push_back(rounded(dtype(), kinds[static_cast<size_t>(row) % kinds.size()]()));
    const DeviceTensor rows(*backend, dtype(), {n, d}, values, 8);
    values = rows.values();  // waits, too
    const cuda::DeviceArray<double> inverse(context, n);
    const auto norms = [&](int64_t n_ordered) {
      const cuda::selection::NormsOf job{rows.view(), inverse.data(), n_ordered};
      cuda::selection::inverse_norms(*context, std::span(&job, 1), {});
      std::vector<double> found(static_cast<size_t>(n));
      context->fetch(inverse.data(), found.data(), n * int64_t{sizeof(double)});
      return found;
    };
    const std::vector<double> found = norms(n), quick = norms(0);
    for (int64_t row = 0; row < n; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) {
        const double x = values[static_cast<size_t>(row * d + i)];
        sum += x * x;
      }
      const double inverse_norm = sum > 0 ? 1 / std::sqrt(sum) : 0.0;
      EXPECT_EQ(found[static_cast<size_t>(row)], inverse_norm) << "row " << row;
      // What exact.cuh allows for.
      EXPECT_NEAR(quick[static_cast<size_t>(row)], inverse_norm,
                  static_cast<double>(d + 16) * 0x1p-52 * inverse_norm)
          << "row " << row;
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
