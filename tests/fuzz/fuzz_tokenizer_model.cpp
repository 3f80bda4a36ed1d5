// A golden tokenizer.json with edits; what it makes of a text goes through a forward step.

#include "fuzz/model_harness.h"
#include "fuzz/tokenizer_harness.h"
#include "paths.h"

namespace {

using namespace sluice::impl;
using nlohmann::json;

constexpr const char* kWords[] = {"BPE",
                                  "WordPiece",
                                  "WordLevel",
                                  "Unigram",
                                  "Sequence",
                                  "ByteLevel",
                                  "Metaspace",
                                  "Split",
                                  "Digits",
                                  "Punctuation",
                                  "Replace",
                                  "Prepend",
                                  "Strip",
                                  "NFC",
                                  "NFKC",
                                  "Lowercase",
                                  "BertNormalizer",
                                  "Fuse",
                                  "ByteFallback",
                                  "CTC",
                                  "Isolated",
                                  "Removed",
                                  "MergedWithPrevious",
                                  "Contiguous",
                                  "first",
                                  "never",
                                  "always",
                                  "Regex",
                                  "String",
                                  "pattern",
                                  "content",
                                  "type",
                                  "vocab",
                                  "merges",
                                  "unk_token",
                                  "unk_id",
                                  "decoders",
                                  "normalizers",
                                  "pretokenizers",
                                  "processors",
                                  "TemplateProcessing",
                                  "RobertaProcessing",
                                  "BertProcessing",
                                  "a",
                                  " ",
                                  "\xe2\x96\x81",
                                  "\\s+",
                                  "[a-z]+|\\d",
                                  "(?i:'s)",
                                  "(?=a)b*?",
                                  "",
                                  "##",
                                  "<0x41>"};

const std::vector<json>& sources() {
  static const std::vector<json> all = [] {
    std::vector<json> list;
    for (const auto& folder : fuzz::golden_files("tokenizers", ""))
      if (exists(folder / "tokenizer.json"))
        list.push_back(json::parse(test::read_bytes(folder / "tokenizer.json")));
    return list;
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const test::TempDir folder;
  static Model model(open_checkpoint(test::golden_dir() / "models/gpt2"),
                     make_reference_backend(DType::kF32), {.context = 8, .progress = {}});
  fuzz::Script script(std::as_bytes(std::span(data, size)));
  json source = sources()[script.below(sources().size())];
  for (int i = 0; i < 8 && !script.ended(); ++i) fuzz::edit_json(source, script, kWords);
  folder.write("tokenizer.json", fuzz::text_of(source));
  fuzz::expect_only_errors([&] {
    const auto tokenizer = open_tokenizer(folder.path());
    fuzz::use_tokenizer(*tokenizer);
    std::vector<int32_t> ids = tokenizer->encode("ab 1", /*add_special=*/true);
    ids.resize(std::min<size_t>(ids.size(), 2));
    // Ids beyond the model's, and none, are refused.
    KvCache cache = model.make_cache();
    fuzz::step(model, ids, cache);
  });
  return 0;
}
