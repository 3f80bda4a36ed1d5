// Golden tokenizers with one or two values replaced by something odd, from a fixed seed: each must
// work or end in one line. Byte-level searches are fuzz_tokenizer's.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "fuzz/tokenizer_harness.h"
#include "paths.h"
#include "unit/json_mutation.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

const std::vector<Json> kOddValues = {nullptr,
                                      true,
                                      -1,
                                      0,
                                      1,
                                      int64_t{1} << 40,
                                      1e308,
                                      -0.5,
                                      "",
                                      "a",
                                      "\xe2\x96\x81",
                                      "(",
                                      "\\p{L}+",
                                      "Nonsense",
                                      "BPE",
                                      Json::array(),
                                      Json::object(),
                                      Json::array({1, "a"}),
                                      Json{{"type", "BPE"}}};

TEST(TokenizerMutations, EndInOneLineOrWork) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(test::golden_dir() / "tokenizers"))
    if (std::filesystem::exists(entry.path() / "tokenizer.json"))
      files.push_back(entry.path() / "tokenizer.json");
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  const test::TempDir folder;
  std::mt19937 random(20);
  for (const auto& file : files) {
    const Json original = Json::parse(test::read_bytes(file));
    for (int i = 0; i < 60; ++i) {
      Json changed = original;
      for (uint32_t n = 1 + random() % 2; n > 0; --n) test::mutate(changed, random, kOddValues, 5);
      const std::string text = changed.dump();
      EXPECT_NO_THROW(fuzz::feed_tokenizer(folder, text)) << file << " mutation " << i;
    }
  }
}

}  // namespace
}  // namespace sluice::impl
