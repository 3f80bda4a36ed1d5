// The comparison of rows under the CPU's selector: what is said to be exact is, to the last bit,
// and what is said to be near is.

#include <numeric>

#include "backend/cpu/selection/gram/scan.h"
#include "parity/basis_cases.h"

namespace sluice::impl::cpu::selection {
namespace {

using test::random_values;

struct GramCase {
  const gemm::Kernel* kernel;
  DType dtype;
  int64_t d_model;
  bool scaled;
};

// (n_tokens, d_model); scaled: times powers of two from 2^-100 to 2^100, where norms of squares
// and products leave float32. Row 3 is zero.
std::vector<float> rows_of(const GramCase& c, int64_t n_tokens) {
  auto rows = random_values(n_tokens * c.d_model, 5, c.dtype);
  for (int64_t t = 0; t < n_tokens; ++t)
    for (int64_t k = 0; k < c.d_model; ++k) {
      float& x = rows[static_cast<size_t>(t * c.d_model + k)];
      if (t == 3) x = 0;
      if (c.scaled) x = std::ldexp(x, static_cast<int>(t * 37 % 201) - 100);
    }
  return rows;
}

std::vector<GramCase> gram_cases() {
  std::vector<GramCase> cases;
  for (const gemm::Kernel* kernel : {&gemm::kernel_f32(), gemm::kernel_bfmmla()})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t d_model : {1, 5, 37, 768, 1300})
        for (const bool scaled : {false, true})
          if (kernel != nullptr) cases.push_back({kernel, dtype, d_model, scaled});
  return cases;
}

// 40 tokens: the first 25 as columns, the others as rows.
template <typename Check>
void for_all_cases(const Check& check) {
  constexpr int64_t kTokens = 40, kColumns = 25;
  for (const GramCase& c : gram_cases()) {
    SCOPED_TRACE(testing::Message() << c.kernel->name << ", " << dtype_name(c.dtype) << ", d_model "
                                    << c.d_model << (c.scaled ? ", scaled" : ""));
    const auto values = rows_of(c, kTokens);
    const Buffer x = host_buffer(c.dtype, {kTokens, c.d_model});
    for (size_t i = 0; i < values.size(); ++i)
      if (c.dtype == DType::kBF16)
        x.view().data<BFloat16>()[i] = to_bfloat16(values[i]);
      else
        x.view().data<float>()[i] = values[i];
    std::vector<double> inverses(kTokens);
    inverse_norms(x.view(), inverses);
    std::vector<int32_t> indices(kTokens);
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int32_t>(i);
    Rows rows(*c.kernel, c.d_model);
    Columns columns(*c.kernel, c.d_model, 1);
    rows.assign({x.view(), inverses, 0}, std::span(indices).first(kColumns));
    std::vector<int64_t> all(kColumns);
    std::iota(all.begin(), all.end(), 0);
    columns.append(rows, all);
    rows.assign({x.view(), inverses, 0}, std::span(indices).subspan(kColumns));
    check(c, ConstTensor(x.view()), rows, columns);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Gram, InverseNormsAreTheExactOnes) {
  for_all_cases([](const GramCase&, const ConstTensor& x, const Rows&, const Columns&) {
    std::vector<double> inverses(static_cast<size_t>(x.rows()));
    inverse_norms(x, inverses);
    for (int64_t t = 0; t < x.rows(); ++t)
      ASSERT_EQ(inverses[static_cast<size_t>(t)], inverse_norm(x, t)) << "row " << t;
  });
}

TEST(Gram, ColumnsGiveTheirRowsBack) {
  for_all_cases([](const GramCase& c, const ConstTensor& x, const Rows&, const Columns& columns) {
    std::vector<float> scratch(static_cast<size_t>(c.d_model));
    for (int64_t t = 0; t < columns.size(); ++t) {
      const float* row = columns.exact(t, scratch.data());
      for (int64_t k = 0; k < c.d_model; ++k)
        ASSERT_EQ(row[k],
                  c.dtype == DType::kBF16 ? to_float(x.row<BFloat16>(t)[k]) : x.row<float>(t)[k])
            << "column " << t << ", element " << k;
    }
  });
}

TEST(Gram, ProductsAreWithinTheirErrorOfTheExactCosine) {
  for_all_cases(
      [](const GramCase& c, const ConstTensor& x, const Rows& rows, const Columns& columns) {
        std::vector<float> products;
        const Scan scan{c.kernel, c.d_model, &rows, &columns, {}};
        EXPECT_EQ(scan.multiply(products), rows.size() * columns.size());
        const int64_t stride = columns.n_panels() * c.kernel->nr;
        for (int64_t i = 0; i < rows.size(); ++i)
          for (int64_t j = 0; j < columns.size(); ++j) {
            const double cosine = double{products[static_cast<size_t>(i * stride + j)]} *
                                  rows[i].packed_inverse * columns[j].packed_inverse;
            const double exact = exact_cosine({x, rows[i].position, rows[i].inverse_norm},
                                              {x, j, columns[j].inverse_norm});
            ASSERT_LE(std::abs(cosine - exact),
                      gram_error(c.d_model, rows[i].rounding, columns[j].rounding))
                << "row " << i << ", column " << j;
          }
      });
}

// Bases of the columns themselves leave nothing of them; random ones leave most.
TEST(Gram, CoordinatesBoundTheExactCosine) {
  for_all_cases([](const GramCase& c, const ConstTensor& x, const Rows& rows,
                   const Columns& columns) {
    std::vector<float> unit, scratch(static_cast<size_t>(c.d_model));
    for (int64_t j = 0; j < columns.size(); ++j)
      for (int64_t k = 0; k < c.d_model; ++k)
        unit.push_back(unit_element(columns.exact(j, scratch.data())[k], columns[j].inverse_norm));
    for (const int64_t rank :
         {int64_t{1}, std::min<int64_t>(c.d_model, 20), std::min<int64_t>(c.d_model / 2, 60)})
      for (const bool fits : {true, false}) {
        if (rank == 0) continue;
        Subspace subspace(*c.kernel,
                          test::basis_of(fits ? unit : std::vector<float>{}, rank, c.d_model, 9));
        subspace.take_rows(rows, rows.size());
        subspace.take_columns(columns, 7);
        subspace.take_columns(columns, columns.size());
        std::vector<float> products;
        const Scan scan{c.kernel, rank, &subspace.rows(), &subspace.columns(), {}};
        scan.multiply(products);
        const int64_t stride = columns.n_panels() * c.kernel->nr;
        for (int64_t i = 0; i < rows.size(); ++i)
          for (int64_t j = 0; j < columns.size(); ++j) {
            const Row &a = subspace.rows()[i], &b = subspace.columns()[j];
            const double exact = exact_cosine({x, rows[i].position, rows[i].inverse_norm},
                                              {x, j, columns[j].inverse_norm});
            ASSERT_LE(std::abs(double{products[static_cast<size_t>(i * stride + j)]} - exact),
                      double{a.residual} * b.residual + subspace.error(a.rounding, b.rounding))
                << "row " << i << ", column " << j << ", rank " << rank;
          }
      }
  });
}

TEST(Gram, JudgedCosinesAreTheExactOnes) {
  for_all_cases(
      [](const GramCase& c, const ConstTensor& x, const Rows& rows, const Columns& columns) {
        Judge judge(rows, c.d_model);
        for (int64_t i = 0; i < rows.size(); ++i) {
          std::vector<Candidate> all;
          for (int64_t j = 0; j < columns.size(); ++j) all.push_back({&columns, j, -2, 2});
          judge.make_exact(i, false, all);
          for (int64_t j = 0; j < columns.size(); ++j)
            ASSERT_EQ(all[static_cast<size_t>(j)].cosine,
                      exact_cosine({x, rows[i].position, rows[i].inverse_norm},
                                   {x, j, columns[j].inverse_norm}))
                << "row " << i << ", column " << j;
        }
      });
}

}  // namespace
}  // namespace sluice::impl::cpu::selection

namespace sluice::impl::test {
namespace {

// Unit rows are the same to the last bit, so sets must be.
TEST_P(EveryImplementation, PowersOfTwoBeforeRowsChangeNoSet) {
  for (const SelectRule rule : kAllRules) {
    SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule)));
    SelectInputs in = select_inputs({RowKind::kClusters, 90, 37, 0.3, 4}, dtype(), rule, {0.3});
    const auto plain = select(*backend, dtype(), in);
    for (size_t i = 0; i < in.rows.size(); ++i)
      in.rows[i] = std::ldexp(in.rows[i], static_cast<int>(i / 37 * 61 % 201) - 100);
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in), plain));
  }
}

}  // namespace
}  // namespace sluice::impl::test
