// Golden tokenizers with one or two values replaced by something odd, from a fixed seed: each must
// work or end in one line. Byte-level searches are fuzz_tokenizer's.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "fuzz/tokenizer_harness.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Random = std::mt19937;

Json odd_value(Random& random) {
  const Json values[] = {nullptr,
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
  return values[random() % std::size(values)];
}

// Walks down at random and replaces, removes or repeats what it comes to.
void mutate(Json& node, Random& random) {
  const bool deeper = node.is_structured() && !node.empty() && random() % 5 != 0;
  if (!deeper) {
    node = odd_value(random);
    return;
  }
  const size_t index = random() % node.size();
  auto child = node.begin();
  std::advance(child, static_cast<int64_t>(index));
  if (random() % 12 == 0) {
    node.erase(child);
  } else if (node.is_array() && random() % 12 == 0) {
    node.push_back(*child);
  } else {
    mutate(*child, random);
  }
}

TEST(TokenizerMutations, EndInOneLineOrWork) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(SLUICE_GOLDEN_DIR) / "tokenizers"))
    if (std::filesystem::exists(entry.path() / "tokenizer.json"))
      files.push_back(entry.path() / "tokenizer.json");
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  const test::TempDir folder;
  Random random(20);
  for (const auto& file : files) {
    const Json original = Json::parse(test::read_bytes(file));
    for (int i = 0; i < 60; ++i) {
      Json json = original;
      for (uint32_t n = 1 + random() % 2; n > 0; --n) mutate(json, random);
      const std::string text = json.dump();
      EXPECT_NO_THROW(fuzz::feed_tokenizer(folder, text)) << file << " mutation " << i;
    }
  }
}

}  // namespace
}  // namespace sluice
