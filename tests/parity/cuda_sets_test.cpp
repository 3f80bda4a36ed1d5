// Sets on a device: several chunks of tokens in one pass of selection, and sets that stay where
// they are, for layers that inherit or share them.

#include "backend/cuda/runtime/device.h"
#include "parity/cuda_select_cases.h"
#include "parity/keys_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// A chunk is 4096 tokens; the cuts are near its ends.
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
  // `at_home`: sets and flags go through the host.
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

// Some passes of a layer by the sets of a selector, which must have decided them: from the device,
// or through the host, which shares nothing with other layers.
struct LayerRun {
  KeysCase keys;
  DType type;
  KeysInputs in;
  std::unique_ptr<KeysAttention> attention;
  std::vector<float> out = {};

  LayerRun(Backend& on, const KeysCase& c, const KeysSpec& spec)
      : keys(c), type(spec.dtype), in(c, type), attention(on.make_keys_attention(spec)) {}

  void attend(Backend& on, const SetsOf& sets, int64_t begin, int64_t end) {
    const int64_t n = end - begin, wide = keys.n_heads * keys.head_dim,
                  narrow = keys.n_kv_heads * keys.head_dim;
    const Shape queries{n, keys.n_heads, keys.head_dim}, rows{n, keys.n_kv_heads, keys.head_dim};
    const DeviceTensor q(on, type, queries, rows_of(in.queries, wide, begin, end));
    const DeviceTensor k(on, type, rows, rows_of(in.keys, narrow, begin, end));
    const DeviceTensor v(on, type, rows, rows_of(in.values, narrow, begin, end));
    const DeviceTensor to = unwritten(on, type, queries);
    attention->attend({.queries = q.view(),
                       .keys = k.view(),
                       .values = v.view(),
                       .sets = sets,
                       .out = to.view()});
    const auto values = to.values();
    out.insert(out.end(), values.begin(), values.end());
  }
};

// Layers that go by the same sets share lists of them: none may take those of the layer before
// where it differs from it in anything that a list depends on.
TEST_P(EveryBackend, LayersThatDifferShareNothing) {
  const SelectInputs rows =
      plain_inputs({RowKind::kClusters, 700, 64, 0.5, 5}, dtype(), SelectRule::kGreedy, {0.5, 0.3});
  const KeysCase base{.n_tokens = 700, .head_dim = 64, .window = 128, .block = 128};
  const auto heads = [&](HeadKeys one, HeadKeys two) {
    KeysCase c = base;
    c.heads = {one, two};
    return c;
  };
  constexpr HeadKind kClusters = HeadKind::kClusters;
  constexpr FarKey kCentroid = FarKey::kCentroid;
  KeysCase wide = base, fine = base, grouped = base;
  wide.window = 256;
  fine.block = 64;
  grouped.n_heads = 4;
  struct Layer {
    KeysCase keys;
    float scale = 1;  // times what others have
  };
  // Each differs from its neighbours, and so does every seventh.
  const std::vector<Layer> layers = {
      {base},
      {wide},
      {base},
      {fine},
      {base},
      {grouped},
      {base},
      {heads({HeadKind::kWindow, kCentroid, 0}, {kClusters, kCentroid, 1})},
      {base},
      {heads({kClusters, kCentroid, 0}, {kClusters, kCentroid, 0})},
      {heads({kClusters, kCentroid, 1}, {kClusters, kCentroid, 1})},
      {base},
      {heads({kClusters, FarKey::kOwn, 0}, {kClusters, FarKey::kValues, 1})},
      {base},
      {base, 2},
      {base}};
  std::vector<LayerRun> there, here;
  for (const Layer& layer : thinned(layers, 7))
    for (auto* runs : {&there, &here}) {
      KeysSpec spec = layer.keys.spec(dtype());
      spec.scale *= layer.scale;
      runs->emplace_back(*backend, layer.keys, spec);
    }
  const auto selector = backend->make_selector(rows.spec);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 600}, {600, 601}, {601, 700}}) {
    extend(*selector, *backend, dtype(), rows, begin, end);
    for (LayerRun& run : there) run.attend(*backend, *selector, begin, end);
    for (LayerRun& run : here) run.attend(*backend, selector->sets(), begin, end);
  }
  for (size_t i = 0; i < there.size(); ++i) {
    SCOPED_TRACE("layer " + std::to_string(i));
    EXPECT_SAME_BITS(there[i].out, here[i].out);
    if (i > 0) {
      EXPECT_NE(there[i].out, there[i - 1].out);
    }
  }
}

// So many rows are listed that they are in two parts, which are made anew for each layer; or in one
// that is too large to be kept for the next.
TEST(CudaSets, ListsTooLargeToShare) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  for (const auto& [n_tokens, taus] :
       {std::pair<int64_t, std::vector<double>>{70000, {0.5, 0.3}}, {50000, {0.5}}}) {
    SCOPED_TRACE(n_tokens);
    KeysCase c{.n_tokens = n_tokens, .head_dim = 16, .window = 128, .block = 128};
    if (taus.size() == 1) c.heads = {{}, {}};
    // The same rows again and again: few clusters, of many members.
    SelectInputs rows = plain_inputs({RowKind::kClusters, 2000, 32, 0.5, 5}, DType::kBF16,
                                     SelectRule::kGreedy, taus);
    rows.n_tokens = n_tokens;
    const size_t period = rows.rows.size();
    rows.rows.resize(static_cast<size_t>(n_tokens * 32));
    for (size_t i = period; i < rows.rows.size(); ++i) rows.rows[i] = rows.rows[i - period];
    const auto selector = extended(*backend, DType::kBF16, rows);
    const auto attended = [&](const SetsOf& sets) {
      LayerRun run(*backend, c, c.spec(DType::kBF16));
      run.attend(*backend, sets, 0, n_tokens);
      return run.out;
    };
    const auto expected = attended(selector->sets());
    for (const char* layer : {"first", "second"}) {
      SCOPED_TRACE(layer);
      EXPECT_SAME_BITS(attended(*selector), expected);
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
