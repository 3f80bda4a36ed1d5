// What every parser takes of memory: at most 4 times its file and 64 MB, as the kernel counts it
// for a process of its own. Files are made up, most of 100 MB, of the kinds that take most: many
// short values. A file that would take more is refused, and within the bound too.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

#include "io/config.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "io/tokenizer/tokenizer.h"
#include "paths.h"
#include "plan/plan_file.h"
#include "report/report.h"
#include "sanitized.h"
#include "subspace/sidecar.h"
#include "tune/measurements.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  bool accepted = false;
  int64_t peak = 0;  // bytes
};

// In a process of its own, which starts with what this one holds: a few MB.
Outcome in_a_process(const std::function<void()>& parse) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      parse();
      _exit(0);
    } catch (const Error&) {
      _exit(1);
    } catch (...) {
      _exit(2);
    }
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << status;
  return {status == 0, int64_t{usage.ru_maxrss} * 1024};
}

int64_t size_of(const fs::path& path) {
  int64_t size = 0;
  if (!fs::is_directory(path)) return static_cast<int64_t>(fs::file_size(path));
  for (const auto& entry : fs::directory_iterator(path))
    size += static_cast<int64_t>(entry.file_size());
  return size;
}

// A file of up to so many bytes in pieces, so that this process stays small.
class Made {
 public:
  explicit Made(const fs::path& path) : stream_(path, std::ios::binary) {}
  Made& add(std::string_view text) {
    stream_.write(text.data(), static_cast<std::streamsize>(text.size()));
    size_ += text.size();
    return *this;
  }
  // piece(i) until the file has `size` bytes, at most n times.
  template <typename Piece>
  Made& fill(size_t size, size_t n, const Piece& piece) {
    for (size_t i = 0; i < n && size_ < size; ++i) add(piece(i));
    return *this;
  }
  Made& overwrite(size_t at, std::string_view text) {
    stream_.seekp(static_cast<std::streamoff>(at));
    add(text);
    return *this;
  }
  void close() { stream_.close(); }
  size_t size() const { return size_; }

 private:
  std::ofstream stream_;
  size_t size_ = 0;
};

class ParserMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (test::kSanitized) GTEST_SKIP() << "a sanitizer's memory counts as the program's";
  }

  // The bound, and whether the file is accepted.
  void expect_bounded(bool accepted, const std::function<void()>& parse) {
    const Outcome outcome = in_a_process(parse);
    const int64_t size = size_of(dir_.path());
    EXPECT_LE(outcome.peak, 4 * size + 64'000'000) << "a file of " << size << " bytes";
    EXPECT_EQ(outcome.accepted, accepted) << "a file of " << size << " bytes";
  }
  void expect_tokenizer(bool accepted) {
    expect_bounded(accepted, [this] { open_tokenizer(dir_.path()); });
  }
  fs::path path(const char* name) const { return dir_.path() / name; }

  test::TempDir dir_;
};

constexpr size_t kLong = 100'000'000;

// A word that no other number has, of `letters` letters or more.
std::string word(size_t i, size_t letters) {
  std::string text;
  for (; i > 0 || text.size() < letters; i /= 26) text += static_cast<char>('a' + i % 26);
  return text;
}

std::string entry(size_t i, size_t letters) {
  return (i == 0 ? "\"" : ",\"") + word(i, letters) + "\":" + std::to_string(i);
}

TEST_F(ParserMemory, OfTheLargestGoldenTokenizerIsBounded) {
  fs::path largest;
  for (const auto& folder : fs::directory_iterator(test::golden_dir() / "tokenizers")) {
    const fs::path file = folder.path() / "tokenizer.json";
    if (fs::exists(file) && (largest.empty() || fs::file_size(file) > fs::file_size(largest)))
      largest = file;
  }
  fs::copy_file(largest, path("tokenizer.json"));
  expect_tokenizer(true);
}

TEST_F(ParserMemory, OfATokenizerOfLongTokensIsBounded) {
  Made(path("tokenizer.json"))
      .add(R"({"model":{"type":"BPE","merges":[],"vocab":{)")
      .fill(kLong, 1'000'000, [](size_t i) { return entry(i, 90); })
      .add("}}}");
  expect_tokenizer(true);
}

TEST_F(ParserMemory, OfATokenizerOfShortTokensIsBounded) {
  Made(path("tokenizer.json"))
      .add(R"({"model":{"type":"WordLevel","vocab":{)")
      .fill(kLong, 1'000'000, [](size_t i) { return entry(i, 1); })
      .add("}}}");
  expect_tokenizer(true);
}

TEST_F(ParserMemory, OfPairsOfMergesIsBounded) {
  Made(path("tokenizer.json"))
      .add(R"({"model":{"type":"BPE","vocab":{"a":0,"aa":1},"merges":[["a","a"])")
      .fill(kLong, 1'200'000, [](size_t) { return R"(,["a","a"])"; })
      .add("]}}");
  expect_tokenizer(true);
}

// As many words as the largest vocabularies of encoders have.
TEST_F(ParserMemory, OfHalfAMillionWordPiecesIsBounded) {
  Made(path("tokenizer.json"))
      .add(R"({"model":{"type":"WordPiece","vocab":{"[UNK]":0)")
      .fill(kLong, 500'000,
            [](size_t i) {
              return (i % 3 == 0 ? ",\"##" : ",\"") + word(7919 * (i + 1), 5) +
                     "\":" + std::to_string(i + 1);
            })
      .add("}}}");
  expect_tokenizer(true);
}

// The same for SentencePiece.
TEST_F(ParserMemory, OfAQuarterMillionUnigramsIsBounded) {
  Made(path("tokenizer.json"))
      .add(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["?",0])")
      .fill(kLong, 250'000,
            [](size_t i) { return ",[\"" + word(7919 * (i + 1), 5) + "\",-12.345678901]"; })
      .add("]}}");
  expect_tokenizer(true);
}

// Every letter of such a vocabulary is a node of a trie.
TEST_F(ParserMemory, OfWordsWithoutACommonBeginningIsBounded) {
  Made(path("tokenizer.json"))
      .add(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["?",0])")
      .fill(kLong / 5, 1'000'000,
            [](size_t i) { return R"(,[")" + word(i, 5) + std::string(60, 'x') + R"(",-1])"; })
      .add("]}}");
  expect_tokenizer(false);
}

TEST_F(ParserMemory, OfAddedTokensIsBounded) {
  Made(path("tokenizer.json"))
      .add(
          R"({"model":{"type":"WordLevel","vocab":{"a":0}},"added_tokens":[{"id":0,"content":"a"})")
      .fill(kLong / 5, 1'000'000,
            [](size_t i) {
              return R"(,{"id":)" + std::to_string(i + 1) + R"(,"content":")" + word(i, 9) + "\"}";
            })
      .add("]}");
  expect_tokenizer(false);
}

TEST_F(ParserMemory, OfVocabAndMergesIsBounded) {
  Made(path("vocab.json"))
      .add("{")
      .fill(kLong / 4, 1'000'000, [](size_t i) { return entry(i, 4); })
      .add("}");
  Made(path("merges.txt")).fill(kLong / 4, 1'000'000, [](size_t) { return "aaaa baaa\n"; });
  expect_tokenizer(false);  // no such token: the merge is refused when both are read
}

TEST_F(ParserMemory, OfTheVocabularyOfGgufIsBounded) {
  using namespace test;
  constexpr size_t kTokens = 2'000'000;
  Made file(path("model.gguf"));
  file.add("GGUF").add(pack<uint32_t>(3)).add(pack<uint64_t>(0)).add(pack<uint64_t>(3));
  file.add(gguf_string("tokenizer.ggml.model")).add(pack<uint32_t>(kGgufString));
  file.add(gguf_string("llama"));
  file.add(gguf_string("tokenizer.ggml.tokens")).add(pack<uint32_t>(kGgufArray));
  file.add(pack<uint32_t>(kGgufString)).add(pack<uint64_t>(kTokens));
  file.fill(10 * kLong, kTokens, [](size_t i) { return gguf_string(word(i, 38)); });
  file.add(gguf_string("tokenizer.ggml.scores")).add(pack<uint32_t>(kGgufArray));
  file.add(pack<uint32_t>(kGgufF32)).add(pack<uint64_t>(kTokens));
  file.fill(10 * kLong, kTokens, [](size_t) { return pack<float>(0); }).close();
  expect_bounded(true, [&] { open_gguf(path("model.gguf")); });
  expect_bounded(false, [&] { open_tokenizer(open_gguf(path("model.gguf"))); });
}

TEST_F(ParserMemory, OfGgufWithBytesAsNumbersIsBounded) {
  using namespace test;
  Made file(path("model.gguf"));
  file.add("GGUF").add(pack<uint32_t>(3)).add(pack<uint64_t>(0)).add(pack<uint64_t>(1));
  file.add(gguf_string("a")).add(pack<uint32_t>(kGgufArray));
  file.add(pack<uint32_t>(kGgufU8)).add(pack<uint64_t>(16'000'000));
  file.add(std::string(16'000'000, '\1')).close();
  expect_bounded(false, [&] { open_gguf(path("model.gguf")); });
}

TEST_F(ParserMemory, OfGgufWithManyKeysAndTensorsIsBounded) {
  using namespace test;
  constexpr uint64_t kItems = 1'000'000;
  const auto open = [&] { open_gguf(path("model.gguf")); };
  Made keys(path("model.gguf"));
  keys.add("GGUF").add(pack<uint32_t>(3)).add(pack<uint64_t>(0)).add(pack<uint64_t>(kItems));
  keys.fill(kLong, kItems,
            [](size_t i) { return gguf_string(word(i, 1)) + pack<uint32_t>(kGgufU8) + "a"; });
  keys.close();
  expect_bounded(false, open);
  Made tensors(path("model.gguf"));
  tensors.add("GGUF").add(pack<uint32_t>(3)).add(pack<uint64_t>(kItems)).add(pack<uint64_t>(0));
  tensors.fill(kLong, kItems, [](size_t i) {
    return gguf_string(word(i, 1)) + pack<uint32_t>(1) + pack<uint64_t>(1) +
           pack<uint32_t>(kGgmlF32) + pack<uint64_t>(32 * i);
  });
  tensors.close();
  expect_bounded(false, open);
}

TEST_F(ParserMemory, OfASafetensorsHeaderIsBounded) {
  const auto header = [&](size_t size, const std::function<std::string(size_t)>& tensor) {
    Made file(path("model.safetensors"));
    file.add(test::pack<uint64_t>(0)).add(R"({"__metadata__":{"a":"b"})");
    file.fill(size, size, tensor).add("}");
    file.overwrite(0, test::pack<uint64_t>(file.size() - 8));
  };
  const auto short_name = [](size_t i) {
    return ",\"" + word(i, 1) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  };
  const auto long_name = [](size_t i) {
    return ",\"" + word(i, 2000) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  };
  const auto open = [&] { open_safetensors_folder(dir_.path()); };
  header(kLong - 3000, long_name);
  expect_bounded(true, open);
  header(kLong / 5, short_name);
  expect_bounded(false, open);
  expect_bounded(false, [&] { read_bases(path("model.safetensors"), {}); });
}

TEST_F(ParserMemory, OfAShardIndexIsBounded) {
  dir_.write("one.safetensors", test::safetensors_bytes({}));
  Made(path("model.safetensors.index.json"))
      .add(R"({"weight_map":{"a":"one.safetensors")")
      .fill(size_t{16} << 20, 10'000'000,
            [](size_t i) { return ",\"" + word(i, 9) + R"(":"one.safetensors")"; });
  expect_bounded(false, [&] { open_safetensors_folder(dir_.path()); });
}

TEST_F(ParserMemory, OfAConfigIsBounded) {
  Made(path("config.json"))
      .add(R"({"n":[0)")
      .fill((size_t{4} << 20) - 3, 1'000'000, [](size_t) { return ",0"; })
      .add("]}");
  expect_bounded(true, [&] { ConfigReader(path("config.json")); });
}

TEST_F(ParserMemory, OfAPlanIsBounded) {
  Made(path("plan.json"))
      .add(R"({"format":"sluice-plan","version":1,"model":{"sha256":")" + std::string(64, '0'))
      .add(
          R"(","family":"llama","n_layers":1,"n_kv_heads":1},"context":128,"layers":[{"layer":0}],)")
      .add(R"("provenance":{"a":[0)")
      .fill((size_t{16} << 20) - 20, 1'000'000, [](size_t) { return ",0.123456789"; })
      .add("]}}");
  expect_bounded(true, [&] { read_plan_file(path("plan.json")); });
}

TEST_F(ParserMemory, OfResultsIsBounded) {
  Made(path("results.json"))
      .add(R"({"schema":1,"version":"0.1.0","command":"bench","cases":[],"settings":{"a":[0)")
      .fill(kLong, 6'000'000, [](size_t) { return ",0.1234567890123456789"; })
      .add("]}}");
  expect_bounded(true, [&] { read_results(path("results.json")); });
}

TEST_F(ParserMemory, OfMeasurementsIsBounded) {
  Made(path("measurements.json"))
      .add(R"({"format":"sluice-measurements 2","key":{},"kl":{},"times":[0)")
      .fill(kLong / 2, 6'000'000, [](size_t) { return ",0.12345678"; })
      .add("]}");
  const auto read = [&] {
    if (!Measurements(path("measurements.json"), nlohmann::json::object()).resumed()) _exit(2);
  };
  expect_bounded(true, read);
  Made(path("measurements.json"))
      .add(R"({"format":"sluice-measurements 2","key":{},"kl":{"a":[0])")
      .fill(kLong / 5, 6'000'000, [](size_t i) { return ",\"" + word(i, 1) + "\":[0]"; })
      .add("}}");
  expect_bounded(false, read);
}

}  // namespace
}  // namespace sluice::impl
