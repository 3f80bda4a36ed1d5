// Sets on a device: several chunks of tokens in one pass of selection, and sets that stay where
// they are, for layers that inherit or share them.

#include "parity/cuda_select_cases.h"
#include "parity/keys_case.h"

namespace sluice::test {
namespace {

// A chunk is 4096 tokens; the cuts fall beside its ends.
TEST_P(EveryBackend, ManyChunksHaveTheSetsOfTheReference) {
  const SelectCase c{RowKind::kClusters, 4700, 64, 0.5, 3};
  for (const SelectRule rule :
       {SelectRule::kGreedy, SelectRule::kCascadeCover, SelectRule::kCascadeCausal}) {
    SCOPED_TRACE(static_cast<int>(rule));
    const SelectInputs in = plain_inputs(c, dtype(), rule, {0.5, 0.3});
    const auto expected = select(*reference, DType::kF32, in);
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in), expected));
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in, {1, 4097}), expected));
  }
}

// Two layers that hand their sets on without the host, and attention that reads them where they
// are.
TEST_P(EveryBackend, SetsMayStayOnTheDevice) {
  const SelectCase c{RowKind::kClusters, 700, 64, 0.5, 5};
  SelectInputs first = select_inputs(c, dtype(), SelectRule::kGreedy, {0.5, 0.3});
  SelectInputs second = first;
  second.spec.rule = SelectRule::kCascadeCover;
  second.rows = random_values(c.n_tokens * c.d_model, 9, dtype(), 0.05f);
  for (size_t i = 0; i < second.rows.size(); ++i)
    second.rows[i] = rounded(dtype(), second.rows[i] + first.rows[i]);
  const KeysCase keys{.n_tokens = 700, .head_dim = 64, .window = 128, .block = 128};
  KeysInputs in(keys, dtype());

  struct Chosen {
    std::vector<TokenSet> sets;
    std::vector<float> attended, again;  // by a layer that goes by the sets, and by another one
  };
  // `at_home`: sets and flags go by way of the host.
  const auto run = [&](Backend& on, DType type, bool at_home) {
    const auto above = on.make_selector(first.spec), below = on.make_selector(second.spec);
    const auto layer = on.make_keys_attention(keys.spec(type));
    const auto other = on.make_keys_attention(keys.spec(type));
    Chosen out;
    const int64_t width = keys.n_heads * keys.head_dim;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 600}, {600, 640}, {640, 700}}) {
      const int64_t n = end - begin;
      const auto part = [&](const std::vector<float>& all, int64_t columns) {
        return rows_of(all, columns, begin, end);
      };
      extend(*above, on, type, first, begin, end);
      const DeviceTensor rows(on, type, {n, c.d_model}, part(second.rows, c.d_model));
      const DeviceTensor residual(on, DType::kF32, {n, c.d_model}, part(second.rows, c.d_model));
      std::vector<std::vector<uint8_t>> flags;
      SelectArgs args{.rows = rows.view(), .residual = residual.view(), .inherited = {}};
      for (size_t i = 0; i < 2; ++i) flags.push_back(membership(above->sets()[i], begin, n));
      for (size_t i = 0; i < 2; ++i)
        args.inherited.push_back(at_home ? Inherited(flags[i]) : Inherited(*above, i));
      below->extend(args);
      EXPECT_EQ(below->n_decided(), end);
      const Shape shape{n, keys.n_heads, keys.head_dim};
      const DeviceTensor q(on, type, shape, part(in.queries, width));
      const DeviceTensor k(on, type, shape, part(in.keys, width));
      const DeviceTensor v(on, type, shape, part(in.values, width));
      for (const bool first_layer : {true, false}) {
        const DeviceTensor to = unwritten(on, type, shape);
        (first_layer ? layer : other)
            ->attend({.queries = q.view(),
                      .keys = k.view(),
                      .values = v.view(),
                      .sets = at_home ? SetsOf(below->sets()) : SetsOf(*below),
                      .out = to.view()});
        const auto values = to.values();
        auto& all = first_layer ? out.attended : out.again;
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    out.sets = below->sets();
    return out;
  };
  const Chosen there = run(*backend, dtype(), false), here = run(*backend, dtype(), true);
  const Chosen expected = run(*reference, DType::kF32, false);
  EXPECT_TRUE(same_sets(there.sets, expected.sets));
  EXPECT_TRUE(same_sets(here.sets, expected.sets));
  EXPECT_SAME_BITS(there.attended, here.attended);
  EXPECT_SAME_BITS(there.again, there.attended);
  in.sets = expected.sets;
  EXPECT_CLOSE(there.attended, expected.attended,
               keys_bounds(*reference, dtype(), keys, in, expected.attended));
}

// A selector that begins anew has other sets, though as many tokens are decided.
TEST_P(EveryBackend, AnotherSequenceHasOtherSets) {
  const KeysCase keys{.n_tokens = 700, .head_dim = 64, .window = 128, .block = 128};
  const KeysInputs in(keys, dtype());
  const Shape shape{keys.n_tokens, keys.n_heads, keys.head_dim};
  const DeviceTensor q(*backend, dtype(), shape, in.queries);
  const DeviceTensor k(*backend, dtype(), shape, in.keys), v(*backend, dtype(), shape, in.values);
  const auto inputs = [&](uint32_t seed) {
    return select_inputs({RowKind::kClusters, keys.n_tokens, 64, 0.5, seed}, dtype(),
                         SelectRule::kGreedy, {0.5, 0.3});
  };
  const SelectInputs one = inputs(5), two = inputs(6);
  const auto attend = [&](Selector& selector, KeysAttention& attention, const SelectInputs& rows) {
    selector.reset();
    attention.reset();
    extend(selector, *backend, dtype(), rows, 0, keys.n_tokens);
    const DeviceTensor to = unwritten(*backend, dtype(), shape);
    attention.attend({.queries = q.view(),
                      .keys = k.view(),
                      .values = v.view(),
                      .sets = selector,
                      .out = to.view()});
    return to.values();
  };
  const auto selector = backend->make_selector(one.spec);
  const auto attention = backend->make_keys_attention(keys.spec(dtype()));
  const auto of_one = attend(*selector, *attention, one);
  const auto of_two = attend(*selector, *attention, two);
  EXPECT_NE(of_two, of_one);
  const auto afresh = backend->make_selector(one.spec);
  EXPECT_SAME_BITS(attend(*afresh, *attention, two), of_two);
  EXPECT_SAME_BITS(attend(*selector, *attention, one), of_one);
}

}  // namespace
}  // namespace sluice::test
