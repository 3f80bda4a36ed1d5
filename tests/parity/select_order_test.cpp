// What the order of sums decides, to the last bit (docs/algorithm.md, section 1).

#include <bit>

#include "backend/exact.h"
#include "parity/select_cases.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

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
  row.resize((row.size() + 7) / 8 * 8);  // as the fast path needs it
  return row;
}

// Pairs as near to the threshold as a tau can tell, from both sides: unit elements are those of
// norms whose squares were summed in order, whatever was known of them before.
TEST_P(EveryBackend, PairsAtTheThresholdAreDecidedByNormsInOrder) {
  std::vector<std::tuple<int64_t, int64_t, int>> cases;
  for (int64_t k = 500; k < 3000; ++k)
    for (const int64_t place : {int64_t{0}, k})
      for (const int units : {-4, 0, 3})
        if (!row_between_roundings(k, place, units, dtype()).empty())
          cases.emplace_back(k, place, units);
  EXPECT_GT(cases.size(), 100u);
  for (const auto& [k, place, units] : thinned(cases, 50)) {
    SCOPED_TRACE(testing::Message() << k << ", at " << place << ", " << units << " units");
    std::vector<float> rows = row_between_roundings(k, place, units, dtype());
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
      SelectInputs in = select_inputs({RowKind::kRandom, 2, d, tau, 1}, dtype(), rule,
                                      {tau, std::nextafter(tau, 0.0)});
      in.spec.sinks = 0;
      in.spec.outlier_ratio = 0;
      in.spec.want_cosines = false;
      in.rows = rows;
      for (auto& inherited : in.inherited) inherited = {0, 0};
      const auto expected = select(*reference, DType::kF32, in);
      EXPECT_EQ(expected[0].n_clusters, 1);
      EXPECT_EQ(expected[1].n_clusters, 2);
      EXPECT_TRUE(same_sets(select(*backend, dtype(), in), expected));
      EXPECT_TRUE(same_sets(select(*backend, dtype(), in, {1}), expected));
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
