// Whole models in several threads: what the library reads and writes in its parallel loops, and two
// models at one time. ThreadSanitizer watches; results are those of one thread.

#include <gtest/gtest.h>

#include <thread>

#include "unit/api/api_models.h"

namespace sluice::test {
namespace {

const std::vector<std::string> kPrompts = {"The sea was", "", "Once upon a time there", "A"};
constexpr size_t kTokens = 150;

// Far keys are read from the 65th token on.
std::vector<Plan> all_modes() {
  std::vector<Plan> plans(1);
  for (const AttentionMode mode :
       {AttentionMode::kRefine, AttentionMode::kKeys, AttentionMode::kCopy})
    plans.push_back(
        Plan::uniform({.mode = mode,
                       .window = mode == AttentionMode::kCopy ? std::optional<int64_t>()
                                                              : std::optional<int64_t>(16)}));
  return plans;
}

std::vector<float> logits_of(Model& model, const Plan& plan) {
  Sequence sequence(model, plan, kTokens + 1);
  const std::vector<int32_t> tokens = demo_tokens(model, kTokens + 1);
  std::vector<float> all = sequence.append_scored(std::span(tokens).first(kTokens));
  sequence.append(std::span(tokens).last(1));  // one token takes other paths
  all.insert(all.end(), sequence.logits().begin(), sequence.logits().end());
  return all;
}

struct Kind {
  DType dtype;
  Weights weights;
};

TEST(ModelsInThreads, EveryModeIsThatOfOneThread) {
  for (const Kind kind : {Kind{DType::kF32, Weights::kAsStored}, Kind{DType::kBF16, Weights::kQ4_0},
                          Kind{DType::kBF16, Weights::kAsStored}}) {
    set_threads(3);
    Model model = Model::load(demo_model(), {.dtype = kind.dtype, .weights = kind.weights});
    for (const Plan& plan : all_modes()) {
      set_threads(3);
      const std::vector<float> three = logits_of(model, plan);
      set_threads(1);
      EXPECT_EQ(three, logits_of(model, plan));
    }
  }
}

TEST(ModelsInThreads, SeveralTextsAreThoseOfOneThread) {
  Model model = Model::load(demo_model(), {.weights = Weights::kQ8_0});
  const auto texts = [&](int n_threads) {
    set_threads(n_threads);
    std::vector<std::string> all;
    for (const BatchResult& one : generate_batch(model, kPrompts, {.max_tokens = 4}))
      all.push_back(one.result.text);
    return all;
  };
  EXPECT_EQ(texts(3), texts(1));
}

TEST(ModelsInThreads, TuneMeasuresInThreads) {
  set_threads(3);
  const ModelFolder folder("llama");
  folder.set_config("max_position_embeddings", 160);
  std::string documents;
  for (int i = 0; i < 12; ++i) documents += letter_text(300) + "<|endoftext|>";
  const std::string text = folder.write("documents.txt", documents);
  Model model = Model::load(folder.path());
  TuneOptions options{.max_kl = 0.5, .objective = Objective::kReads};
  options.context = 64;
  options.n_windows = options.n_held_out = 2;
  options.needles = false;
  EXPECT_GT(tune(model, text, options).held_out.n_tokens, 0);
}

// docs/library.md: a model is for one thread at a time, several models are not.
TEST(ModelsInThreads, TwoModelsAtOneTimeAnswerAsOne) {
  const auto answer = [] {
    set_threads(2);
    Model model = Model::load(demo_model());
    return generate(model, kPrompts[0], {.max_tokens = 8}).text;
  };
  const std::string alone = answer();
  std::string first, second;
  std::thread other([&] { second = answer(); });
  first = answer();
  other.join();
  EXPECT_EQ(first, alone);
  EXPECT_EQ(second, alone);
}

}  // namespace
}  // namespace sluice::test
