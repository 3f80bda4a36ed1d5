// What depends on the order of sums, to the last bit.

#include <bit>
#include <functional>

#include "backend/cuda/select_kernels.h"
#include "backend/exact.h"
#include "parity/cuda_select_cases.h"

namespace sluice::test {
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
      const cuda::NormsOf job{rows.view(), inverse.data(), n_ordered};
      cuda::inverse_norms(*context, std::span(&job, 1), {});
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

// Norms at the limit but for the order of their sums, which decides.
TEST_P(EveryBackend, OutliersAreToldByTheOrderOfSums) {
  const SelectCase c{RowKind::kClusters, 2500, 1000, 0.5, 14};
  const auto d = static_cast<size_t>(c.d_model);
  for (const SelectRule rule : {SelectRule::kGreedy, SelectRule::kCascadeCover}) {
    SelectInputs in = plain_inputs(c, dtype(), rule, {0.5});
    std::vector<float> row = random_values(c.d_model, 12);
    std::mt19937 random(12);
    for (size_t t = 0; t < static_cast<size_t>(c.n_tokens); ++t) {
      if (t > 300) std::shuffle(row.begin(), row.end(), random);
      for (size_t i = 0; i < d; ++i) in.residual.push_back(t > 300 ? 8 * row[i] : row[i]);
    }
    const auto expected = expected_sets(in);
    const auto n_exempt = std::count(expected[0].status.begin() + 301, expected[0].status.end(),
                                     TokenStatus::kExempt);
    EXPECT_GT(n_exempt, 100);
    EXPECT_LT(n_exempt, 2100);
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in), expected));
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in, {100, 400, 401}), expected));
  }
}

// k numbers of one size and a small one, by which their unit elements lie, in float64, just between
// two of f32: the order in which squares are summed decides which of these they become. (Of bf16
// the small one is too coarse for that.) Or nothing, where no small one is small enough.
std::vector<float> row_between_roundings(int64_t k, int64_t place, int units, DType dtype) {
  const float size = rounded(dtype, 1.1f);
  const double unit = 1 / std::sqrt(static_cast<double>(k));
  const uint64_t cut = 0x1fffffff, bits = std::bit_cast<uint64_t>(unit);
  const auto between = std::bit_cast<double>((bits & ~cut) | (cut / 2 + 1));
  if (between >= unit || unit - between > 1e-9 * unit) return {};
  std::vector<float> row(static_cast<size_t>(k), size);
  auto small =
      size * static_cast<float>(std::sqrt(1 / (between * between) - static_cast<double>(k)));
  for (; units != 0; units -= units > 0 ? 1 : -1)
    small = std::nextafter(small, units > 0 ? 1.0f : 0.0f);
  row.insert(row.begin() + place, rounded(dtype, small));
  row.resize((row.size() + 7) / 8 * 8);  // as the fast way wants them
  return row;
}

// Pairs whose cosine is the threshold to the last bit, and the next number below it: unit elements
// are those of norms whose squares were summed in order, whatever was known of them before.
TEST_P(EveryBackend, PairsAtTheThresholdAreDecidedByNormsInOrder) {
  int n_cases = 0;
  for (int64_t k = 500; k < 3000; ++k)
    for (const int64_t place : {int64_t{0}, k})
      for (const int units : {-4, 0, 3}) {
        std::vector<float> rows = row_between_roundings(k, place, units, dtype());
        if (rows.empty()) continue;
        SCOPED_TRACE(testing::Message() << k << ", at " << place << ", " << units << " units");
        ++n_cases;
        const auto d = static_cast<int64_t>(rows.size());
        const std::vector<float> noise = random_values(d, static_cast<uint32_t>(k));
        for (int64_t i = 0; i < d; ++i)
          rows.push_back(
              rounded(dtype(), rows[static_cast<size_t>(i)] + noise[static_cast<size_t>(i)]));
        const ConstTensor view(rows.data(), DType::kF32, {2, d});
        const double cosine =
            exact_cosine({view, 0, inverse_norm(view, 0)}, {view, 1, inverse_norm(view, 1)});
        double tau = std::sqrt(1 - cosine);
        while (threshold_of(tau) > cosine) tau = std::nextafter(tau, 1.0);
        while (threshold_of(std::nextafter(tau, 0.0)) <= cosine) tau = std::nextafter(tau, 0.0);
        for (const SelectRule rule : {SelectRule::kGreedy, SelectRule::kCascadeCover}) {
          SelectInputs in = plain_inputs({RowKind::kRandom, 2, d, tau, 1}, dtype(), rule,
                                         {tau, std::nextafter(tau, 0.0)});
          in.spec.sinks = 0;
          in.rows = rows;
          for (auto& inherited : in.inherited) inherited = {0, 0};
          const auto expected = expected_sets(in);
          EXPECT_EQ(expected[0].n_clusters, 1);
          EXPECT_EQ(expected[1].n_clusters, 2);
          EXPECT_TRUE(same_sets(select(*backend, dtype(), in), expected));
          EXPECT_TRUE(same_sets(select(*backend, dtype(), in, {1}), expected));
        }
      }
  EXPECT_GT(n_cases, 100);
}

}  // namespace
}  // namespace sluice::test
