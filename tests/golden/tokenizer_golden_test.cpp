// Every golden string through every golden tokenizer, compared with what Hugging Face `tokenizers`,
// transformers and SentencePiece gave (tools/golden/tokenizers.py; versions in each expected.json).

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/gguf.h"
#include "io/tokenizer/tokenizer.h"
#include "paths.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

constexpr int kMaxShown = 5;  // mismatches printed per tokenizer

const fs::path& root() {
  static const fs::path path = test::golden_dir() / "tokenizers";
  return path;
}

nlohmann::json read_json(const fs::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

const std::vector<std::string>& strings() {
  static const auto all = read_json(root() / "strings.json").get<std::vector<std::string>>();
  return all;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  if (fs::exists(root())) {
    for (const auto& entry : fs::directory_iterator(root())) {
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::unique_ptr<Tokenizer> open_golden(const fs::path& folder) {
  const fs::path gguf = folder / "tokenizer.gguf";
  return fs::exists(gguf) ? open_tokenizer(open_gguf(gguf)) : open_tokenizer(folder);
}

std::string show(const Tokenizer& tokenizer, const Ids& ids) {
  std::string out;
  for (const int32_t id : ids) {
    out += std::to_string(id) + ":" + nlohmann::json(tokenizer.token_of(id)).dump() + " ";
  }
  return out;
}

// Decodes id by id; every piece on its own must be whole characters.
std::string stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string out;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_NO_THROW(nlohmann::json(piece).dump()) << "a piece is not UTF-8";
    out += piece;
  }
  return out + decoder.finish();
}

// Text by string index where it is stored, and what it is otherwise.
std::string stored_text(const nlohmann::json& table, size_t index, const std::string& otherwise) {
  const auto it = table.find(std::to_string(index));
  return it == table.end() ? otherwise : it->get<std::string>();
}

class TokenizerGolden : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerGolden, IdsAndTextAreThoseOfTheReference) {
  const fs::path folder = root() / GetParam();
  const auto tokenizer = open_golden(folder);
  const nlohmann::json expected = read_json(folder / "expected.json");
  const Ids before = expected.at("before").get<Ids>();
  const Ids after = expected.at("after").get<Ids>();
  const size_t every = expected.at("every").get<size_t>();
  int n_wrong = 0;
  size_t n_checked = 0;
  const auto check = [&](const char* what, size_t index, const auto& got, const auto& want,
                         const auto& print) {
    ++n_checked;
    if (got == want || ++n_wrong > kMaxShown) return;
    ADD_FAILURE() << what << " of string " << index << " "
                  << nlohmann::json(strings()[index]).dump() << "\n  expected " << print(want)
                  << "\n       got " << print(got);
  };
  const auto print_ids = [&](const Ids& ids) { return show(*tokenizer, ids); };
  const auto print_text = [](const std::string& text) { return nlohmann::json(text).dump(); };

  for (size_t i = 0; i < expected.at("ids").size(); ++i) {
    if (expected.at("ids")[i].is_null()) continue;
    const size_t index = i * every;
    const std::string& text = strings().at(index);
    const Ids plain = expected.at("ids")[i].get<Ids>();
    Ids full = before;
    full.insert(full.end(), plain.begin(), plain.end());
    full.insert(full.end(), after.begin(), after.end());
    check("ids", index, tokenizer->encode(text, false), plain, print_ids);
    check("ids with special tokens", index, tokenizer->encode(text, true), full, print_ids);
    const std::string skipped = stored_text(expected.at("decoded"), index, text);
    const std::string kept = stored_text(expected.at("decoded_plain"), index, skipped);
    check("text without special tokens", index, tokenizer->decode(full, true), skipped, print_text);
    check("text", index, tokenizer->decode(plain, false), kept, print_text);
    check("streamed text without special tokens", index, stream(*tokenizer, full, true), skipped,
          print_text);
    check("streamed text", index, stream(*tokenizer, plain, false), kept, print_text);
  }
  EXPECT_EQ(n_wrong, 0) << "of " << n_checked << " comparisons";
  EXPECT_GT(n_checked, 1000u);
  RecordProperty("comparisons", static_cast<int>(n_checked));
}

TEST_P(TokenizerGolden, NamesBosAndEosAsTheFilesDo) {
  const fs::path folder = root() / GetParam();
  const auto tokenizer = open_golden(folder);
  const nlohmann::json expected = read_json(folder / "expected.json");
  const auto id = [&](const char* key) -> std::optional<int32_t> {
    if (expected.at(key).is_null()) return std::nullopt;
    return expected.at(key).get<int32_t>();
  };
  EXPECT_EQ(tokenizer->bos(), id("bos"));
  EXPECT_EQ(tokenizer->eos(), id("eos"));
  EXPECT_EQ(tokenizer->vocab_size(), expected.at("vocab_size").get<int32_t>());
  EXPECT_EQ(tokenizer->kind(), expected.at("kind").get<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Golden, TokenizerGolden, testing::ValuesIn(golden_names()),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-'; }, '_');
                           return name;
                         });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TokenizerGolden);

}  // namespace
}  // namespace sluice::impl
