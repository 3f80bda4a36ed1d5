// What only a device does: several chunks of tokens in one pass of selection, and so many tiles of
// queries that their keys are not split.

#include "parity/keys_case.h"
#include "parity/select_cases.h"

namespace sluice::test {
namespace {

// A chunk is 4096 tokens; the cuts fall beside its ends.
TEST_P(EveryBackend, ManyChunksHaveTheSetsOfTheReference) {
  const SelectCase c{RowKind::kClusters, 4700, 64, 0.5, 3};
  for (const SelectRule rule :
       {SelectRule::kGreedy, SelectRule::kCascadeCover, SelectRule::kCascadeCausal}) {
    SCOPED_TRACE(static_cast<int>(rule));
    SelectInputs in = select_inputs(c, dtype(), rule, {0.5, 0.3});
    in.spec.want_cosines = false;
    in.spec.sinks = 4;
    in.spec.outlier_ratio = 8;
    const auto expected = select(*reference, DType::kF32, in);
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in), expected));
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in, {1, 4097}), expected));
  }
}

TEST_P(EveryBackend, KeysOfManyTilesAgreeWithTheReference) {
  constexpr HeadKeys kKinds[] = {{HeadKind::kClusters, FarKey::kCentroid, 0},
                                 {HeadKind::kClusters, FarKey::kValues, 1},
                                 {HeadKind::kClusters, FarKey::kOwn, 1},
                                 {HeadKind::kWindow, FarKey::kCentroid, 0},
                                 {HeadKind::kDense, FarKey::kCentroid, 0}};
  std::vector<KeysCase> cases = {
      {.n_tokens = 333, .head_dim = 64, .n_heads = 30, .n_kv_heads = 30, .window = 32, .block = 16},
      {.n_tokens = 333,
       .head_dim = 128,
       .n_heads = 60,
       .n_kv_heads = 30,
       .window = 16,
       .block = 16},
      {.n_tokens = 333,
       .head_dim = 256,
       .n_heads = 30,
       .n_kv_heads = 30,
       .window = 32,
       .block = 16},
      {.n_tokens = 333, .head_dim = 80, .n_heads = 90, .n_kv_heads = 30, .window = 0, .block = 16},
      {.n_tokens = 700,
       .head_dim = 64,
       .n_heads = 60,
       .n_kv_heads = 60,
       .window = 128,
       .block = 128},
      {.n_tokens = 150, .head_dim = 128, .n_heads = 300, .n_kv_heads = 150, .causal = false},
  };
  for (KeysCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    c.set.sinks = c.causal ? 4 : 0;
    for (int64_t head = 0; head < c.n_kv_heads; ++head) {
      HeadKeys kind = kKinds[head % 5];
      if (!c.causal && kind.kind == HeadKind::kWindow) kind.kind = HeadKind::kClusters;
      c.heads.push_back(kind);
    }
    const KeysInputs in(c, dtype());
    const auto expected = attend_keys(*reference, DType::kF32, c, in);
    EXPECT_CLOSE(attend_keys(*backend, dtype(), c, in), expected,
                 keys_bounds(*reference, dtype(), c, in, expected));
  }
}

}  // namespace
}  // namespace sluice::test
