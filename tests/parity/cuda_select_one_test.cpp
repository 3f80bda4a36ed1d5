// Selection token by token, as decoding asks for it, and the norms that it starts from.

#include <functional>

#include "backend/cuda/select_kernels.h"
#include "parity/select_cases.h"

namespace sluice::test {
namespace {

std::vector<int64_t> every_token_from(int64_t first, int64_t n) {
  std::vector<int64_t> cuts;
  for (int64_t t = first; t < n; ++t) cuts.push_back(t);
  return cuts;
}

// Long enough for a median of norms that stands still.
TEST_P(EveryBackend, OneTokenAtATimeGivesTheSetsOfTheReference) {
  for (const RowKind kind : kRowKinds)
    for (const SelectRule rule :
         {SelectRule::kIndependent, SelectRule::kGreedy, SelectRule::kCascadeCausal,
          SelectRule::kCascadeCover, SelectRule::kFixed}) {
      SCOPED_TRACE(testing::Message()
                   << "rows " << static_cast<int>(kind) << ", rule " << static_cast<int>(rule));
      const SelectCase c{kind, 300, 64, 0.5, 11};
      SelectInputs in = select_inputs(c, dtype(), rule, {0.5, 0.0, 0.3});
      in.spec.sinks = 3;
      in.spec.outlier_ratio = 1.2;
      in.residual = random_values(c.n_tokens * c.d_model, 5);
      for (size_t i = 0; i < in.residual.size(); ++i)
        if (i / 64 % 5 == 0) in.residual[i] *= 1.25f;
      for (const bool cosines : {true, false}) {
        in.spec.want_cosines = cosines;
        EXPECT_TRUE(same_sets(select(*backend, dtype(), in, every_token_from(1, c.n_tokens)),
                              select(*reference, DType::kF32, in)));
      }
    }
}

TEST_P(EveryBackend, OneTokenAfterALongPassHasTheSetOfTheReference) {
  const SelectCase c{RowKind::kClusters, 1100, 4096, 0.33, 5};
  SelectInputs in = select_inputs(c, dtype(), SelectRule::kCascadeCover, {0.33, 0.6});
  in.spec.want_cosines = false;
  in.spec.outlier_ratio = 8;
  EXPECT_TRUE(same_sets(select(*backend, dtype(), in, every_token_from(1030, c.n_tokens)),
                        select(*make_cpu_backend(DType::kF32), DType::kF32, in)));
}

TEST_P(EveryBackend, OneTokenOfAnySizeHasTheSetOfTheReference) {
  for (const SelectRule rule : {SelectRule::kGreedy, SelectRule::kCascadeCover}) {
    const SelectCase c{RowKind::kClusters, 300, 64, 0.5, 8};
    SelectInputs in = select_inputs(c, dtype(), rule, {0.5});
    for (size_t t = 0; t < static_cast<size_t>(c.n_tokens); ++t)
      for (size_t i = 0; i < 64; ++i)
        in.rows[t * 64 + i] = std::ldexp(in.rows[t * 64 + i], t % 7 == 0   ? 70
                                                              : t % 7 == 3 ? -70
                                                                           : 0);
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in, every_token_from(1, c.n_tokens)),
                          select(*reference, DType::kF32, in)));
  }
}

// 1 / norm is part of what is defined, to the last bit: numbers of one size, of many, such that
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
    const cuda::NormsOf job{rows.view(), inverse.data()};
    cuda::inverse_norms(*context, std::span(&job, 1), {});
    std::vector<double> found(static_cast<size_t>(n));
    context->fetch(inverse.data(), found.data(), n * int64_t{sizeof(double)});
    for (int64_t row = 0; row < n; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) {
        const double x = values[static_cast<size_t>(row * d + i)];
        sum += x * x;
      }
      EXPECT_EQ(found[static_cast<size_t>(row)], sum > 0 ? 1 / std::sqrt(sum) : 0.0)
          << "row " << row;
    }
  }
}

}  // namespace
}  // namespace sluice::test
