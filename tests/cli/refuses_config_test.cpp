// A config.json, tokenizer or text that cannot be used.

#include <unistd.h>

#include <limits>
#include <random>

#include "cli/refusals.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace test;

class RefusesConfig : public testing::TestWithParam<Refusal> {};

TEST_P(RefusesConfig, WithOneLineAndAHint) { expect_refused(GetParam()); }

// ---- config.json ----

Refusal bad_config(std::string name, const std::string& key, const json& value,
                   std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [key, value](ModelFolder& folder) {
                folder.set_config(key, value);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

Refusal bad_config_text(std::string name, const std::string& text,
                        std::vector<std::string> fragments) {
  fragments.insert(fragments.begin(), "config.json");
  return {.name = std::move(name),
          .build =
              [text](ModelFolder& folder) {
                folder.write("config.json", text);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

std::vector<Refusal> config_refusals() {
  const std::string hint = "are config and weights from one checkpoint?";
  return {
      bad_config("WidthContradictsWeights", "n_embd", 48, {"the config implies (64, 48)", hint}),
      bad_config("VocabularyContradictsWeights", "vocab_size", 65,
                 {"wte.weight is (64, 32), the config implies (65, 32)", hint}),
      bad_config("PositionsContradictWeights", "n_positions", 50,
                 {"wpe.weight is (40, 32), the config implies (50, 32)", hint}),
      bad_config("InnerWidthContradictsWeights", "n_inner", 64,
                 {"c_fc.weight is (32, 128), the config implies (32, 64)", hint}),
      bad_config("MoreLayersThanWeights", "n_layer", 3,
                 {"no tensor `transformer.h.2.", "is the checkpoint complete"}),
      bad_config("HeadsDoNotDivideWidth", "n_head", 3,
                 {"n_head: expected a divisor of `n_embd`, found 3"}),
      bad_config("WidthIsText", "n_embd", "wide",
                 {"n_embd: expected an integer", "found \"wide\""}),
      bad_config("WidthIsNegative", "n_embd", -32, {"n_embd: expected an integer", "found -32"}),
      bad_config("WidthIsHuge", "n_embd", int64_t{1} << 62,
                 {"n_embd: expected an integer", "found 4611686018427387904"}),
      bad_config("WidthIsAFraction", "n_embd", 32.5, {"n_embd: expected an integer", "found 32.5"}),
      bad_config("WidthIsNull", "n_embd", nullptr, {"n_embd: expected an integer", "found null"}),
      bad_config("FewerLayersThanWeights", "n_layer", 1, {"states 1 layers", "h.1."}),
      bad_config("UntiedWithoutAHead", "tie_word_embeddings", false, {"lm_head.weight"}),
      bad_config("LayersAreHuge", "n_layer", 1'000'000'000,
                 {"n_layer: expected an integer", "found 1000000000"}),
      bad_config("UnknownActivation", "activation_function", "tanhh", {"\"tanhh\"", "gelu_new"}),
      bad_config("UnknownFamily", "model_type", "rwkv",
                 {"model_type: expected gpt2, gptj, gpt_neox, opt", "found \"rwkv\"",
                  "not supported yet"}),
      bad_config_text("NotJson", "n_embd = 32\n", {"not valid JSON"}),
      bad_config_text("Truncated", R"({"model_type": "gpt2", "n_embd": )", {"not valid JSON"}),
      bad_config_text("NotANumber", R"({"model_type": "gpt2", "n_embd": NaN})", {"not valid JSON"}),
      bad_config_text("Empty", "", {"is empty"}),
      bad_config_text("EmptyObject", "{}", {"model_type: expected a string, found nothing"}),
      bad_config_text("List", "[1, 2]", {"expected an object, found an array"}),
      bad_config_text("NestsTooDeep", std::string(100'000, '['), {"nests deeper"}),
      {.name = "Missing",
       .build =
           [](ModelFolder& folder) {
             folder.remove("config.json");
             return eval_of(folder);
           },
       .fragments = {"no config.json in this folder"}},
      {.name = "IsAFolder",
       .build =
           [](ModelFolder& folder) {
             folder.remove("config.json");
             fs::create_directory(folder.file("config.json"));
             return eval_of(folder);
           },
       .fragments = {"config.json", "is a directory, expected a file"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Config, RefusesConfig, testing::ValuesIn(config_refusals()), name_of);

// ---- tokenizer ----

Refusal bad_tokenizer(std::string name, std::function<void(json&)> edit,
                      std::vector<std::string> fragments) {
  return {.name = std::move(name),
          .build =
              [edit = std::move(edit)](ModelFolder& folder) {
                folder.edit_json("tokenizer.json", edit);
                return eval_of(folder);
              },
          .fragments = std::move(fragments)};
}

std::vector<Refusal> tokenizer_refusals() {
  return {
      {.name = "Missing",
       .build =
           [](ModelFolder& folder) {
             folder.remove("tokenizer.json");
             return eval_of(folder);
           },
       .fragments = {"has no tokenizer.json", "save_pretrained"}},
      {.name = "NotJson",
       .build =
           [](ModelFolder& folder) {
             folder.write("tokenizer.json", "{\"model\": {\"type\": \"WordLevel\", ");
             return eval_of(folder);
           },
       .fragments = {"tokenizer.json", "not valid JSON"}},
      {.name = "LinkToItself",
       .build =
           [](ModelFolder& folder) {
             folder.remove("tokenizer.json");
             fs::create_symlink("tokenizer.json", folder.file("tokenizer.json"));
             return eval_of(folder);
           },
       .fragments = {"tokenizer.json"}},
      bad_tokenizer("NoModel", [](json& root) { root.erase("model"); },
                    {"tokenizer.json", "model"}),
      bad_tokenizer("UnknownModel", [](json& root) { root["model"]["type"] = "Magic"; },
                    {"tokenizer.json", "`Magic`", "not supported"}),
      bad_tokenizer("TwoTokensOneId", [](json& root) { root["model"]["vocab"]["b"] = 3; },
                    {"tokenizer.json", "gives id 3 to both"}),
      bad_tokenizer("NegativeId", [](json& root) { root["model"]["vocab"]["b"] = -1; },
                    {"tokenizer.json"}),
      bad_tokenizer("BrokenPattern",
                    [](json& root) { root["pre_tokenizer"]["pattern"]["Regex"] = "(unclosed"; },
                    {"tokenizer.json"}),
      bad_tokenizer("MoreTokensThanTheModel", [](json& root) { root["model"]["vocab"]["~"] = 64; },
                    {"the tokenizer has 65 tokens, the model 64", "from one checkpoint?"}),
      bad_tokenizer("TextItCannotSpell",
                    [](json& root) {
                      root["model"]["vocab"].erase("<unk>");
                      root["model"]["vocab"].erase("e");
                    },
                    {"unk_token `<unk>`", "does not cover this text"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, RefusesConfig, testing::ValuesIn(tokenizer_refusals()),
                         name_of);

// ---- texts, prompts and what does not fit ----

std::vector<Refusal> text_refusals() {
  const auto eval_text = [](const ModelFolder& folder, const std::string& text) {
    return Args{"eval", "-m", folder.path(), "-f", folder.write("text.txt", text)};
  };
  return {
      {.name = "Empty",
       .build = [=](ModelFolder& folder) { return eval_text(folder, ""); },
       .fragments = {"fewer than two tokens", "-f takes a text file"}},
      {.name = "OnlyLineEnds",
       .build = [=](ModelFolder& folder) { return eval_text(folder, "\n\r\n\n"); },
       .fragments = {"fewer than two tokens"}},
      {.name = "OneToken",
       .build =
           [=](ModelFolder& folder) {
             folder.remove("tokenizer_config.json");  // else a first token stands before the text
             return eval_text(folder, "a");
           },
       .fragments = {"fewer than two tokens"}},
      {.name = "Missing",
       .build =
           [](ModelFolder& folder) {
             return Args{"eval", "-m", folder.path(), "-f", folder.file("none.txt")};
           },
       .fragments = {"none.txt", "cannot be read"}},
      {.name = "IsAFolder",
       .build =
           [](ModelFolder& folder) {
             return Args{"eval", "-m", folder.path(), "-f", folder.path()};
           },
       .fragments = {"is a folder", "-f takes a text file"}},
      {.name = "PromptFileMissing",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-f", folder.file("none")});
           },
       .fragments = {"none", "No such file", "check the spelling"}},
      {.name = "PromptFileIsAFolder",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-f", folder.path()});
           },
       .fragments = {"is a directory, expected a file"}},
      {.name = "PromptLongerThanContext",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-p", letter_text(100)});
           },
       .fragments = {"the prompt has 100 tokens, the context is 40", "a shorter prompt"}},
      {.name = "EmptyPromptWithoutAFirstToken",
       .build =
           [](ModelFolder& folder) {
             folder.remove("tokenizer_config.json");
             return generate_of(folder, {"-p", ""});
           },
       .fragments = {"the prompt is empty"}},
      {.name = "ContextLongerThanTheModels",
       .build =
           [](ModelFolder& folder) {
             return eval_of(folder, {"-c", "41"});
           },
       .fragments = {"context 41 is longer than the model's 40", "use --context 40 or less"}},
      {.name = "EvalOfAnEncoderThatHasNoMask",
       .build = [](ModelFolder& folder) { return eval_of(folder); },
       .fragments = {"no mask token", "[MASK]"},
       .golden = "bert"},
      {.name = "EvalOfAnEncoderThatShouldGenerate",
       .build =
           [](ModelFolder& folder) {
             return eval_of(folder, {"--attention", "keys", "--predict", "4"});
           },
       .fragments = {"bert is an encoder", "cannot generate"},
       .golden = "bert"},
      {.name = "BatchesOfAnEncoder",
       .build =
           [](ModelFolder& folder) {
             return eval_of(folder, {"--batch", "2"});
           },
       .fragments = {"esm is an encoder", "--batch"},
       .golden = "esm"},
      {.name = "MasksOfACausalModel",
       .build =
           [](ModelFolder& folder) {
             return eval_of(folder, {"--mask-share", "0.2"});
           },
       .fragments = {"gpt2 is a causal model", "--mask-share"}},
      {.name = "GenerateWithAnEncoder",
       .build =
           [](ModelFolder& folder) {
             return generate_of(folder, {"-p", "ab"});
           },
       .fragments = {"bert is an encoder", "causal"},
       .golden = "bert"},
      // In a build without it, without a driver, and, since devices are hidden, with one.
      {.name = "NoCudaHere",
       .build =
           [](ModelFolder& folder) {
             setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);
             return eval_of(folder, {"--device", "cuda"});
           },
       .fragments = {"no CUDA", "--device cpu"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Text, RefusesConfig, testing::ValuesIn(text_refusals()), name_of);

}  // namespace
}  // namespace sluice::impl
