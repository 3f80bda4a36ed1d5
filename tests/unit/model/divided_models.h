// What tests of divided models compare: a text continued by the whole model and by its ranks.

#pragma once

#include <algorithm>

#include "model/batch.h"
#include "plan/plan.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/family_models.h"
#include "unit/ranks/thread_ranks.h"

namespace sluice::impl::test {

using CheckpointPtr = std::shared_ptr<const Checkpoint>;

inline Model whole_model(const CheckpointPtr& checkpoint, int64_t context) {
  return Model(checkpoint, make_cpu_backend(DType::kF32),
               {.context = context, .progress = {}, .weights = DType::kF32});
}

// A prompt in two pieces, then greedy tokens.
struct Continuation {
  std::vector<float> logits;  // after the prompt and after every token but the last
  std::vector<int32_t> tokens;
};
inline Continuation continued(Model& model, const std::vector<int32_t>& prompt, int64_t n_tokens,
                              const Plan& plan) {
  KvCache cache = model.make_cache(1, std::ssize(prompt) + n_tokens, plan.attention, plan.linear);
  const auto all = std::span(prompt);
  const size_t half = prompt.size() / 2;
  std::vector<float> scores(static_cast<size_t>(model.spec().vocab));
  const Tensor view(scores.data(), DType::kF32, {1, model.spec().vocab});
  if (half > 0) model.forward(all.first(half), cache);
  ConstTensor hidden = model.forward(all.subspan(half), cache);
  Continuation result;
  while (true) {
    model.logits(hidden.rows_from(hidden.rows() - 1, 1), view);
    result.logits.insert(result.logits.end(), scores.begin(), scores.end());
    auto best =
        static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    model.share({&best, 1});
    result.tokens.push_back(best);
    if (std::ssize(result.tokens) == n_tokens) return result;
    hidden = model.forward({&result.tokens.back(), 1}, cache);
  }
}

inline AttentionPlan keys_plan(const Model& model) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.rule = SelectRule::kCascadeCover;
  choice.tau = 0.8;
  choice.window = choice.block = 8;
  return uniform_plan(choice, model.plan_shape());
}

inline AttentionPlan refine_plan(const Model& model) {
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  choice.sinks = 0;
  choice.window = 0;
  choice.delta = 0.05;
  choice.refine.segment = 16;
  choice.refine.tile = 1;
  return uniform_plan(choice, model.plan_shape());
}

// Eight layers, so that sets cross several borders.
inline CheckpointPtr deep_llama(int n_kv_heads = 2) {
  const nlohmann::json config = {{"model_type", "llama"},
                                 {"num_hidden_layers", 8},
                                 {"hidden_size", 64},
                                 {"intermediate_size", 96},
                                 {"num_attention_heads", 4},
                                 {"num_key_value_heads", n_kv_heads},
                                 {"max_position_embeddings", 512},
                                 {"vocab_size", 64},
                                 {"rms_norm_eps", 1e-5},
                                 {"tie_word_embeddings", false}};
  return synthetic_checkpoint(ConfigReader(config, "deep llama"));
}

// The sets of every layer that this rank has.
inline std::vector<TokenSet> all_sets(Model& model, const std::vector<int32_t>& tokens,
                                      const Plan& plan) {
  KvCache cache = model.make_cache(1, 0, plan.attention);
  for (size_t begin = 0; begin < tokens.size(); begin += 100)
    model.forward(std::span(tokens).subspan(begin, std::min<size_t>(100, tokens.size() - begin)),
                  cache);
  std::vector<TokenSet> sets;
  for (int64_t layer = cache.range().begin; layer < cache.range().end; ++layer)
    if (const Selector* selector = cache.selector(layer))
      sets.insert(sets.end(), selector->sets().begin(), selector->sets().end());
  return sets;
}

// Prompts of several lengths in one batch; the last does not fit the context of deep_llama().
class DividedBatch {
 public:
  explicit DividedBatch(uint32_t n_fitting) {
    for (uint32_t i = 0; i < n_fitting; ++i) {
      std::string text;
      for (const int32_t token : repeating_tokens(3 + i * 17 % 60, i + 1))
        text += static_cast<char>(32 + token);
      texts_.push_back(text);
    }
    texts_.push_back(std::string(600, '!'));
    for (const std::string& text : texts_) prompts_.push_back({.text = text});
  }

  std::vector<std::string> answers_of(Model& model, int64_t n_live, const Plan& plan) const {
    std::vector<std::string> answers(prompts_.size());
    generate_batch(model, tokenizer_, prompts_, {.n_predict = 9, .plan = plan}, n_live,
                   {.token = {}, .done = [&](int64_t index, BatchAnswer answer) {
                      answers[static_cast<size_t>(index)] =
                          answer.error ? answer.error->what() : answer.text;
                    }});
    return answers;
  }

 private:
  ByteTokenizer tokenizer_{{.first_byte = 32, .vocab = 64}};
  std::vector<std::string> texts_;
  std::vector<BatchPrompt> prompts_;
};

}  // namespace sluice::impl::test
