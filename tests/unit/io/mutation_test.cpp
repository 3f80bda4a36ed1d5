// The fuzz targets' inputs in every test run: the corpus as it is, then a few thousand mutations
// of it from a fixed seed. Long searches are made with libFuzzer, see tests/fuzz/CMakeLists.txt.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "fuzz/harness.h"
#include "paths.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using Random = std::mt19937;
using Feed = std::function<void(std::span<const std::byte>)>;

size_t below(Random& random, size_t limit) { return random() % limit; }

void overwrite(std::string& input, size_t at, const std::string& bytes) {
  for (size_t i = 0; i < bytes.size() && at + i < input.size(); ++i) input[at + i] = bytes[i];
}

// One change of the kinds that break parsers: bits, lengths, cuts, repeats.
void mutate(std::string& input, const std::string& other, Random& random) {
  constexpr uint64_t kEdges[] = {0,          1,          2,           0x7f,       0xff,
                                 0x7fffffff, 0xffffffff, 0x100000000, 1ull << 62, (1ull << 63) - 1,
                                 1ull << 63, ~0ull - 31, ~0ull - 7,   ~0ull};
  if (input.empty()) input = other;
  if (input.empty()) return;
  const size_t at = below(random, input.size());
  switch (random() % 9) {
    case 0:
      input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
      break;
    case 1:
      input[at] = static_cast<char>(random());
      break;
    case 2:
      overwrite(input, at, test::pack(kEdges[random() % std::size(kEdges)]));
      break;
    case 3:
      overwrite(input, at, test::pack(static_cast<uint32_t>(kEdges[random() % 7])));
      break;
    case 4:
      input.resize(at);
      break;
    case 5:
      input.erase(at, 1 + below(random, 16));
      break;
    case 6:
      input.insert(at, input.substr(at, 1 + below(random, 32)));
      break;
    case 7:
      input = input.substr(0, at) + other.substr(below(random, other.size() + 1));
      break;
    case 8: {  // another digit or sign where a number stands in text
      const size_t digit = input.find_first_of("0123456789", at);
      if (digit != input.npos) input[digit] = "0123456789-.e"[random() % 13];
      break;
    }
  }
}

std::vector<std::string> corpus(const std::string& name) {
  const auto folder = test::fuzz_corpus_dir() / name;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const auto& path : paths) inputs.push_back(test::read_bytes(path));
  return inputs;
}

// A copy that ends where its memory ends, so that the address sanitizer sees reads past the end.
void feed_exactly(const Feed& feed, const std::string& input) {
  const std::vector<std::byte> exact(test::as_bytes(input).begin(), test::as_bytes(input).end());
  feed(exact);
}

void run_mutations(const std::string& name, int iterations, const Feed& feed) {
  const std::vector<std::string> inputs = corpus(name);
  ASSERT_FALSE(inputs.empty());
  for (const std::string& input : inputs) ASSERT_NO_THROW(feed_exactly(feed, input));
  Random random(20240607);
  for (int i = 0; i < iterations; ++i) {
    std::string input = inputs[below(random, inputs.size())];
    const size_t changes = 1 + below(random, 4);
    for (size_t change = 0; change < changes; ++change)
      mutate(input, inputs[below(random, inputs.size())], random);
    ASSERT_NO_THROW(feed_exactly(feed, input)) << "iteration " << i;
  }
}

TEST(Mutations, OfSafetensorsEndInErrorsOrTensors) {
  run_mutations("safetensors", 6000, fuzz::feed_safetensors);
}

TEST(Mutations, OfGgufEndInErrorsOrTensors) { run_mutations("gguf", 6000, fuzz::feed_gguf); }

TEST(Mutations, OfConfigEndInErrorsOrValues) { run_mutations("config", 6000, fuzz::feed_config); }

TEST(Mutations, OfAShardIndexEndInErrorsOrTensors) {
  const test::TempDir dir;
  dir.write("one.safetensors", test::safetensors_bytes({test::f32_tensor("a", {1}, {1})}));
  dir.write("two.safetensors", test::safetensors_bytes({test::f32_tensor("b", {1}, {2})}));
  const std::string good = R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})";
  Random random(7);
  for (int i = 0; i < 500; ++i) {
    std::string index = good;
    mutate(index, good, random);
    dir.write("model.safetensors.index.json", index);
    ASSERT_NO_THROW(fuzz::expect_only_errors([&] { open_safetensors_folder(dir.path()); }))
        << index;
  }
}

}  // namespace
}  // namespace sluice::impl
