// How matrices are divided by width, and what ranks make of their slices.

#include <gtest/gtest.h>

#include <numeric>

#include "io/quantise/quantise.h"
#include "model/load.h"
#include "unit/model/tensor_models.h"

namespace sluice::impl::test {
namespace {

TEST(DivideTensors, MoreRanksThanKeyHeadsAreRefused) {
  const CheckpointPtr checkpoint = deep_llama();
  try {
    divide_tensors(checkpoint->description, checkpoint->weights(), {}, 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "3 ranks cannot share the 2 key heads of this model");
    EXPECT_EQ(error.hint(), "mpirun -n 2 or less, or --split pipeline");
  }
}

// A family may have heads of any size, so that there can be more of them than columns.
TEST(DivideTensors, MoreRanksThanRowsOfAMatrixAreRefused) {
  ModelDescription description = deep_llama(4)->description;
  description.spec.d_model = 2;
  try {
    divide_tensors(description, {}, {}, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "4 ranks cannot share 96 inner columns, a width of 2 and a vocabulary of 64");
  }
}

TEST(DivideTensors, CutsInnerColumnsBetweenBlocks) {
  ModelDescription description = deep_llama(4)->description;
  description.spec.d_inner = 1536;
  const auto inner = [&](std::optional<DType> weights, int n) {
    std::vector<Range> ranges;
    for (const TensorRanges& rank : divide_tensors(description, {}, weights, n))
      ranges.push_back(rank.inner);
    return ranges;
  };
  using Ranges = std::vector<Range>;
  EXPECT_EQ(inner({}, 4), (Ranges{{0, 384}, {384, 768}, {768, 1152}, {1152, 1536}}));
  EXPECT_EQ(inner(DType::kQ4_K, 4), (Ranges{{0, 256}, {256, 768}, {768, 1024}, {1024, 1536}}));
  description.spec.d_inner = 512;  // fewer blocks of 256 columns than ranks
  EXPECT_EQ(inner(DType::kQ4_K, 3), (Ranges{{0, 160}, {160, 320}, {320, 512}}));
  description.spec.d_inner = 64;  // of 32 columns
  EXPECT_EQ(inner(DType::kQ8_0, 3), (Ranges{{0, 16}, {16, 40}, {40, 64}}));
  description.spec.d_inner = 20;  // of 8
  EXPECT_EQ(inner(DType::kQ8_0, 4), (Ranges{{0, 5}, {5, 10}, {10, 15}, {15, 20}}));
  description.spec.d_inner = 130;  // the last 8 are cut
  EXPECT_EQ(inner(DType::kQ8_0, 4), (Ranges{{0, 32}, {32, 64}, {64, 96}, {96, 130}}));
  description.spec.d_inner = 8640;  // no blocks of q4_k: q8_0
  EXPECT_EQ(inner(DType::kQ4_K, 2), (Ranges{{0, 4320}, {4320, 8640}}));
}

// Two layers of heads of 64 columns.
CheckpointPtr wide_llama(int n_heads, int d_inner) {
  const nlohmann::json config = {{"model_type", "llama"},
                                 {"num_hidden_layers", 2},
                                 {"hidden_size", 512},
                                 {"intermediate_size", d_inner},
                                 {"num_attention_heads", n_heads},
                                 {"num_key_value_heads", n_heads},
                                 {"head_dim", 64},
                                 {"max_position_embeddings", 64},
                                 {"vocab_size", 96},
                                 {"rms_norm_eps", 1e-5},
                                 {"tie_word_embeddings", false}};
  return synthetic_checkpoint(ConfigReader(config, "wide llama"));
}

// The first of two ranks has 256 columns behind attention, a block of q4_k, but all together are
// 576, which no such blocks divide.
TEST(TensorTypes, AreThoseOfTheWholeModelsMatrices) {
  const CheckpointPtr checkpoint = wide_llama(9, 576);
  const Loading how{.weights = DType::kQ4_K};
  const Model whole = loaded(checkpoint, how);
  EXPECT_EQ(whole.n_other_weights(), 4);  // behind attention and the MLP
  for (const int n_ranks : {2, 3}) {
    std::vector<int64_t> bytes(static_cast<size_t>(n_ranks));
    on_ranks(n_ranks, [&](Communicator& ranks) {
      const Model model = loaded(checkpoint, how, &ranks);
      EXPECT_EQ(model.n_other_weights(), whole.n_other_weights());
      bytes[static_cast<size_t>(ranks.rank())] = model.weight_bytes();
    });
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}), whole.weight_bytes());
  }
}

// On four ranks, 128 columns behind attention and 192 behind the MLP.
TEST(TensorTypes, OfSlicesThatBlocksDoNotFitAreQ8) {
  const CheckpointPtr checkpoint = wide_llama(8, 768);
  const Loading how{.weights = DType::kQ4_K};
  EXPECT_EQ(loaded(checkpoint, how).n_other_weights(), 0);
  const int64_t q8_bytes = loaded(checkpoint, {.weights = DType::kQ8_0}).weight_bytes() / 4;
  on_ranks(4, [&](Communicator& ranks) {
    const Model model = loaded(checkpoint, how, &ranks);
    EXPECT_EQ(model.n_other_weights(), 4);
    EXPECT_LT(model.weight_bytes(), q8_bytes);
  });
}

TEST(TensorBiases, InBlocksAreCutAnywhere) {
  constexpr int64_t n_rows = 64, n_in = 2;
  const std::vector<float> weights(static_cast<size_t>(n_rows * n_in), 1.0f);
  std::vector<float> bias(static_cast<size_t>(n_rows));
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i) - 20;
  std::vector<std::byte> blocks(static_cast<size_t>(n_rows / 32 * 34));
  quantise_blocks(DType::kQ8_0, bias, blocks.data());
  WeightStore store;
  store.add({"weight", DType::kF32, {n_rows, n_in}, std::as_bytes(std::span(weights))});
  store.add({"bias", DType::kQ8_0, {n_rows}, blocks});
  const MatrixNames names = {{.weight = "weight", .bias = "bias", .n_out = n_rows}};
  const std::vector<float> all = matrix_source(store, names, n_in).bias;
  const std::vector<float> some = matrix_source(store, rows_of(names, {7, 50}), n_in).bias;
  EXPECT_EQ(some, std::vector<float>(all.begin() + 7, all.begin() + 50));
}

}  // namespace
}  // namespace sluice::impl::test
