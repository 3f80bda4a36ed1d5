// results.json: digests, the header, and files that are whole or not there.

#include "eval/results.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/commit.h"
#include "eval/machine.h"
#include "sluice/version.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

TEST(Sha256, MatchesThePublishedVectors) {
  const TempDir dir;
  EXPECT_EQ(sha256_of({dir.write("abc", "abc")}),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of({dir.write("empty", "")}), sha256_of({}));
  EXPECT_EQ(sha256_of({dir.write("million", std::string(1000000, 'a'))}),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, OfSeveralFilesIsThatOfTheirConcatenation) {
  const TempDir dir;
  const auto a = dir.write("a", "a"), bc = dir.write("bc", "bc"), empty = dir.write("empty", "");
  EXPECT_EQ(sha256_of({a, empty, bc}), sha256_of({dir.write("abc", "abc")}));
  EXPECT_NE(sha256_of({bc, a}), sha256_of({a, bc}));
}

TEST(Sha256, OfAMissingFileIsAnError) {
  const TempDir dir;
  expect_error([&] { sha256_of({dir.path() / "none"}); }, {"none"});
}

TEST(WriteJson, ReplacesTheFileWholeAndLeavesNothingElse) {
  const TempDir dir;
  const auto path = dir.write("results.json", "old and much longer than what replaces it");
  const nlohmann::json results = {{"a", 1}, {"b", {1.5, nullptr, "text"}}};
  write_json(results, path);
  EXPECT_EQ(nlohmann::json::parse(read_bytes(path)), results);
  EXPECT_TRUE(read_bytes(path).ends_with("}\n"));
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    EXPECT_EQ(entry.path(), path);
    ++n_files;
  }
  EXPECT_EQ(n_files, 1);
}

TEST(WriteJson, BytesThatAreNotUtf8AreReplaced) {
  const TempDir dir;
  write_json({{"path",
               "a\xff"
               "b"}},
             dir.path() / "results.json");
  EXPECT_EQ(nlohmann::json::parse(read_bytes(dir.path() / "results.json")).at("path"),
            "a\ufffd"
            "b");
}

TEST(WriteJson, WhatCannotBeWrittenIsAnErrorAndTheOldFileStays) {
  const TempDir dir;
  expect_error(
      [&] {
        write_json({{"a", 1}}, dir.path() / "none" / "results.json");
      },
      {"results.json: cannot be written"});
  // The target is a folder.
  std::filesystem::create_directories(dir.path() / "folder" / "inside");
  expect_error(
      [&] {
        write_json({{"a", 1}}, dir.path() / "folder");
      },
      {"folder: cannot be written"});
  EXPECT_TRUE(std::filesystem::is_directory(dir.path() / "folder" / "inside"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "folder.part"));
}

TEST(Results, NameTheProgramTheModelAndTheText) {
  const TempDir folder;
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy(golden_model("models/llama").path() / file, folder.path() / file);
  const auto checkpoint = open_checkpoint(folder.path());
  const auto backend = make_reference_backend(DType::kBF16);
  const auto header = results_header("eval", "sluice eval -m x", *backend);
  EXPECT_EQ(header.at("command"), "eval");
  EXPECT_EQ(header.at("command_line"), "sluice eval -m x");
  EXPECT_EQ(header.at("sluice_version"), SLUICE_VERSION);
  EXPECT_EQ(header.at("commit").is_null(), source_commit().empty());
  EXPECT_EQ(header.at("timestamp").get<std::string>().size(), 20u);
  EXPECT_EQ(header.at("machine").at("cpu"), cpu_name());
  EXPECT_GE(header.at("machine").at("threads"), 1);
  const auto model = describe_model(*checkpoint, *backend);
  EXPECT_EQ(model.at("family"), "llama");
  EXPECT_EQ(model.at("dtype"), "bf16");
  EXPECT_EQ(model.at("vocab"), checkpoint->spec().vocab);
  EXPECT_EQ(model.at("sha256"),
            sha256_of({folder.path() / "config.json", folder.path() / "model.safetensors"}));
  const TempDir dir;
  const auto text = describe_text(dir.write("text", "abc"), 3);
  EXPECT_EQ(text.at("n_tokens"), 3);
  EXPECT_EQ(text.at("sha256").get<std::string>().substr(0, 8), "ba7816bf");
}

}  // namespace
}  // namespace sluice::impl::test
