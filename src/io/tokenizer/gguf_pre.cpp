#include "io/tokenizer/gguf_pre.h"

#include <algorithm>

namespace sluice::impl::tok {

namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<GgufPre> find_gguf_pre(std::string_view name) {
  if (one_of(name, {"default", "gpt-2", "gpt2", "phi-2", "mpt", "jais"})) {
    return GgufPre{.regexes = {kGpt2}};
  }
  // GPT-NeoX's, which Pythia has too.
  if (name == "olmo") return GgufPre{.regexes = {kGpt2}, .nfc = true};
  if (one_of(name, {"llama-bpe", "llama3", "llama-v3"})) {
    return GgufPre{.regexes = {kLlama3}, .ignore_merges = true, .add_bos = true};
  }
  if (one_of(name, {"dbrx", "smaug-bpe"})) return GgufPre{.regexes = {kLlama3}};
  if (one_of(name, {"qwen2", "deepseek-r1-qwen"})) {
    return GgufPre{.regexes = {kQwen2}, .nfc = true};
  }
  if (name == "stablelm2") return GgufPre{.regexes = {kQwen2}};
  if (one_of(name, {"smollm", "starcoder", "refact", "command-r", "codeshell"})) {
    return GgufPre{.regexes = {kDigit, kGpt2}};
  }
  if (one_of(name, {"gpt-4o", "llama4"})) return GgufPre{.regexes = {kGpt4o}};
  if (name == "tekken") return GgufPre{.regexes = {kTekken}, .ignore_merges = true};
  return std::nullopt;
}

}  // namespace sluice::impl::tok
