// Files no honest program writes: each must end in one Error, quickly and without much memory.

#include <gtest/gtest.h>

#include <random>

#include "unit/io/tokenizer/tokenizer_files.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using test::small_tokenizer;
using test::TokenizerFolder;

void expect_refused(const json& tokenizer, const std::vector<std::string>& fragments) {
  const TokenizerFolder folder(tokenizer);
  std::vector<std::string> all = {"tokenizer.json"};
  all.insert(all.end(), fragments.begin(), fragments.end());
  test::expect_error([&] { folder.open(); }, all);
}

json changed(const char* pointer, json value) {
  json tokenizer = small_tokenizer();
  tokenizer[json::json_pointer(pointer)] = std::move(value);
  return tokenizer;
}

json sequence(const char* list, const json& step, size_t n) {
  return {{"type", "Sequence"}, {list, json::array_t(n, step)}};
}

TEST(HostileTokenizer, WrongTypesAreNamedByKey) {
  const json odd = {{"type", 3}};
  expect_refused(json::array(), {});
  expect_refused(json::object(), {"model"});
  expect_refused(changed("/model", 3), {"model"});
  expect_refused(changed("/model/vocab", 3), {"model.vocab"});
  expect_refused(changed("/model/vocab", json::array({1})), {"model.vocab"});
  expect_refused(changed("/model/vocab/a", "x"), {"model.vocab", "a"});
  expect_refused(changed("/model/vocab/a", 1.5), {"model.vocab", "a"});
  expect_refused(changed("/model/merges", "a b"), {"model.merges"});
  expect_refused(changed("/model/merges/0", 3), {"model.merges[0]"});
  expect_refused(changed("/model/merges/0", "ab"), {"model.merges[0]"});
  expect_refused(changed("/model/merges/0", json::array({"a"})), {"model.merges[0]"});
  expect_refused(changed("/model/dropout", 0.5), {"model.dropout"});
  expect_refused(changed("/model/fuse_unk", "yes"), {"model.fuse_unk"});
  expect_refused(changed("/model/type", "Neural"), {"model", "Neural"});
  for (const char* key : {"normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
    expect_refused(changed((std::string("/") + key).c_str(), 3), {key});
    expect_refused(changed((std::string("/") + key).c_str(), odd), {key, "type"});
    expect_refused(changed((std::string("/") + key).c_str(), {{"type", "Nonsense"}}),
                   {key, "Nonsense"});
    expect_refused(changed((std::string("/") + key).c_str(), {{"type", "Sequence"}}), {key});
  }
  expect_refused(changed("/added_tokens", 3), {"added_tokens"});
  expect_refused(changed("/added_tokens/0/content", 3), {"added_tokens[0].content"});
  expect_refused(changed("/added_tokens/0/lstrip", 3), {"added_tokens[0].lstrip"});
}

TEST(HostileTokenizer, IdsMustBeSmallAndTheirOwn) {
  for (const json& id : {json(-1), json(int64_t{1} << 40), json(UINT64_MAX), json(1e30), json()}) {
    expect_refused(changed("/model/vocab/a", id), {"model.vocab", "a"});
    expect_refused(changed("/added_tokens/0/id", id), {"added_tokens[0].id"});
    expect_refused(changed("/post_processor/special_tokens/<s>/ids/0", id), {"ids[0]"});
  }
  expect_refused(changed("/model/vocab/a", 1), {"model.vocab", "id 1"});
  expect_refused(changed("/added_tokens/0/id", 0), {"added_tokens[0]", "id 0"});
  expect_refused(changed("/post_processor/special_tokens/<s>/ids/0", 100), {"post_processor"});
}

TEST(HostileTokenizer, ALargeIdCostsNoMemory) {
  const auto tokenizer = TokenizerFolder(changed("/model/vocab/a", 1 << 24)).open();
  EXPECT_EQ(tokenizer->vocab_size(), (1 << 24) + 1);
  EXPECT_EQ(tokenizer->encode("a", false), (std::vector<int32_t>{1 << 24}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{12345}, false), "");  // an id without a token
}

TEST(HostileTokenizer, MergesMustNameTokens) {
  expect_refused(changed("/model/merges/0", "a zz"), {"merge 0", "zz"});
  expect_refused(changed("/model/merges/0", "b a"), {"merge 0", "ba"});
}

TEST(HostileTokenizer, TemplatesMustMakeSense) {
  expect_refused(changed("/post_processor/single", json::array()), {"post_processor.single"});
  expect_refused(changed("/post_processor/special_tokens", json::object()), {"special_tokens"});
  expect_refused(changed("/post_processor/single/1/Sequence/id", "B"), {"single[1]"});
}

TEST(HostileTokenizer, PatternsMustCompile) {
  const auto split = [](const char* regex) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
  };
  expect_refused(changed("/pre_tokenizer", split("(")), {"pre_tokenizer.pattern.Regex"});
  expect_refused(changed("/pre_tokenizer", split(std::string(100'000, 'a').c_str())),
                 {"pre_tokenizer.pattern.Regex"});
  expect_refused(changed("/pre_tokenizer", split(std::string(5'000, '(').c_str())),
                 {"pre_tokenizer.pattern.Regex"});
}

TEST(HostileTokenizer, AnEndlessPatternEndsInAnError) {
  const auto tokenizer =
      TokenizerFolder(changed("/pre_tokenizer", {{"type", "Split"},
                                                 {"pattern", {{"Regex", "(\\p{L}+)+$"}}},
                                                 {"behavior", "Isolated"}}))
          .open();
  test::expect_error([&] { tokenizer->encode(std::string(60, 'a') + "1", false); }, {"pattern"});
}

TEST(HostileTokenizer, DeepNestingIsRefused) {
  const TokenizerFolder folder;
  folder.dir.write("tokenizer.json", std::string(1'000'000, '['));
  test::expect_error([&] { folder.open(); }, {"tokenizer.json"});
  std::string nested = R"({"type":"NFC"})";
  for (int i = 0; i < 1000; ++i) nested = R"({"type":"Sequence","normalizers":[)" + nested + "]}";
  folder.dir.write("tokenizer.json", R"({"normalizer":)" + nested + "}");
  test::expect_error([&] { folder.open(); }, {"tokenizer.json"});
}

TEST(HostileTokenizer, SequencesOfManyStepsAreRefused) {
  const json fuse = {{"type", "Fuse"}}, nfc = {{"type", "NFC"}}, digits = {{"type", "Digits"}},
             bytes = {{"type", "ByteLevel"}};
  for (const size_t n : {size_t{256}, size_t{100'000}}) {
    expect_refused(changed("/decoder", sequence("decoders", fuse, n)), {"decoder: has more than"});
    expect_refused(changed("/normalizer", sequence("normalizers", nfc, n)), {"normalizer: has"});
    expect_refused(changed("/pre_tokenizer", sequence("pretokenizers", digits, n)),
                   {"pre_tokenizer: has more than 256 steps"});
    expect_refused(changed("/post_processor", sequence("processors", bytes, n)),
                   {"post_processor: has more than 256 steps"});
  }
  // In sequences of sequences, too.
  expect_refused(changed("/decoder", sequence("decoders", sequence("decoders", fuse, 20), 20)),
                 {"decoder: has more than 256 steps"});
  const auto most = TokenizerFolder(changed("/decoder", sequence("decoders", fuse, 255))).open();
  EXPECT_EQ(most->decode(std::vector<int32_t>{6, 2}, false), "abc");
}

json replace(const char* from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// 2^30 and 1000^10 times the text, where nothing stopped it.
TEST(HostileTokenizer, StepsThatMultiplyATextAreStopped) {
  const std::string text = "a a\xc3\xa9";
  const auto expect_stopped = [&](const char* pointer, const json& steps) {
    const auto tokenizer = TokenizerFolder(changed(pointer, steps)).open();
    test::expect_error([&] { tokenizer->encode(text, false); }, {"the tokenizer makes"});
  };
  expect_stopped("/normalizer", sequence("normalizers", replace("a", "aa"), 30));
  expect_stopped("/normalizer", sequence("normalizers", replace("a", std::string(1000, 'a')), 10));
  expect_stopped("/normalizer", replace("a", std::string(1'000'000, 'a')));
  expect_stopped("/normalizer", {{"type", "Prepend"}, {"prepend", std::string(1'000'000, 'a')}});
  expect_stopped(
      "/pre_tokenizer",
      sequence("pretokenizers",
               {{"type", "ByteLevel"}, {"use_regex", false}, {"add_prefix_space", false}}, 30));
  const json regex = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "aa"}};
  for (const json& steps : {sequence("decoders", replace("a", "aa"), 30),
                            sequence("decoders", replace("a", std::string(1000, 'a')), 10),
                            sequence("decoders", regex, 30)}) {
    const auto tokenizer = TokenizerFolder(changed("/decoder", steps)).open();
    test::expect_error(
        [&] {
          tokenizer->decode(std::vector<int32_t>{0, 6}, false);
        },
        {"the tokenizer makes"});
  }
}

TEST(HostileTokenizer, ATemplateOfManyTokensIsRefused) {
  expect_refused(changed("/post_processor/special_tokens/<s>/ids", json::array_t(2000, 1)),
                 {"post_processor.single", "more than 1024"});
}

// Ten thousand words of up to a thousand letters; every one was looked up at every length.
TEST(HostileTokenizer, LongWordsOfOnePrefixTakeLittleTime) {
  json vocab = {{"[UNK]", 0}, {"a", 1}, {"##a", 2}};
  for (int i = 0; i < 10'000; ++i)
    vocab[(i % 2 ? "##" : "") + std::string(static_cast<size_t>(i) % 900 + 50, 'a') + "b" +
          std::to_string(i)] = i + 3;
  const json model = {{"type", "WordPiece"},
                      {"unk_token", "[UNK]"},
                      {"max_input_chars_per_word", 1000},
                      {"vocab", vocab}};
  const auto tokenizer = TokenizerFolder(json{{"model", model}}).open();
  EXPECT_EQ(tokenizer->encode(std::string(1000, 'a'), false).size(), 1000u);
  json longer = {{"type", "WordPiece"}, {"vocab", {{std::string(2000, 'a'), 0}}}};
  expect_refused(json{{"model", longer}}, {"is longer than 1024 bytes"});
  longer = {{"type", "WordPiece"}, {"vocab", {{"a", 0}}}, {"max_input_chars_per_word", 10'000}};
  expect_refused(json{{"model", longer}}, {"max_input_chars_per_word", "from 0 to 1000"});
}

TEST(HostileTokenizer, ListsOfAModelAreReadAsTheyCome) {
  const TokenizerFolder folder;
  const auto write = [&](const std::string& model) {
    folder.dir.write("tokenizer.json", R"({"model":{)" + model + "}}");
  };
  const auto refused = [&](const std::string& model, const std::string& message) {
    write(model);
    test::expect_error([&] { folder.open(); }, {"tokenizer.json: " + message});
  };
  // The last counts of what is there twice: an entry, a list.
  write(R"("type":"BPE","vocab":{"x":7},"merges":["x"])");
  EXPECT_THROW(folder.open(), Error);
  write(R"("vocab":{"x":7},"merges":[],"vocab":{"a":0,"b":1,"a":2})");
  EXPECT_EQ(folder.open()->id_of("a"), 2);
  EXPECT_EQ(folder.open()->id_of("x"), std::nullopt);
  write(R"("merges":["a b"],"vocab":{"a":0,"b":1,"ab":2},"merges":[])");
  EXPECT_EQ(folder.open()->encode("ab", false), (std::vector<int32_t>{0, 1}));

  refused(R"("merges":[],"vocab":{"a":0,"b":{"c":[1]}})",
          "model.vocab.b: expected an integer from 0 to 16777216, found an object");
  refused(R"("merges":[],"vocab":{"a":[]})",
          "model.vocab.a: expected an integer from 0 to 16777216, found an array");
  refused(R"("vocab":[["a",0],["b",0,1]])",
          "model.vocab[1]: expected a token with its score, found an array");
  refused(R"("vocab":[["a",0],["b",[0]]])",
          "model.vocab[1]: expected a token with its score, found an array");
  refused(R"("vocab":[["a",0],{"b":1}])",
          "model.vocab[1]: expected a token with its score, found an object");
  refused(R"("vocab":{"a":0},"merges":["a a",["a",3]])",
          "model.merges[1]: expected a pair of tokens, found an array");
  // Inside of them the text itself may be broken.
  refused(R"("vocab":{"a":0,"b":x)", "model.vocab.b: not valid JSON");
  refused(R"("vocab":[["a",0],["b",)", "model.vocab[1]: not valid JSON");
  refused(R"("vocab":[["a",0],)", "model.vocab[1]: not valid JSON");
  refused(R"("vocab":[)" + std::string(100, '['), "model.vocab[0]: JSON nests deeper");
}

TEST(HostileTokenizer, ALineOfMergesThatIsNoPairIsNamed) {
  const TokenizerFolder folder;
  folder.put("vocab.json", {{"a", 0}, {"b", 1}, {"ab", 2}});
  for (const char* line : {"ab", "a b c"}) {
    folder.dir.write("merges.txt", "#version: 0.2\na b\r\n\n" + std::string(line));
    test::expect_error([&] { folder.open(); },
                       {"merges.txt: line 4: expected two tokens with one space between, found `" +
                        std::string(line) + "`"});
  }
  folder.dir.write("merges.txt", "a b\n");
  folder.dir.write("vocab.json", "[1]");
  test::expect_error([&] { folder.open(); }, {"vocab.json: model.vocab: expected an object"});
}

// More than a million bytes; time that grew with the square would be minutes.
TEST(HostileTokenizer, ManySmallObjectsAreRead) {
  std::string objects = R"({"x": [{})";
  for (int i = 0; i < 400'000; ++i) objects += ",{}";
  const TokenizerFolder folder;
  folder.dir.write("tokenizer.json", objects + R"(], "model": 3})");
  test::expect_error([&] { folder.open(); },
                     {"tokenizer.json: model: expected an object, found 3"});
}

TEST(HostileTokenizer, AFileCutAnywhereIsRefused) {
  const std::string whole = small_tokenizer().dump();
  const TokenizerFolder folder;
  for (size_t n = 0; n < whole.size(); n += 7) {
    folder.dir.write("tokenizer.json", whole.substr(0, n));
    test::expect_error([&] { folder.open(); }, {"tokenizer.json"});
  }
}

TEST(HostileTokenizer, BytesThatAreNotUtf8AreRefused) {
  const TokenizerFolder folder;
  folder.dir.write("tokenizer.json", "{\"model\": \"\xFF\xFE\"}");
  test::expect_error([&] { folder.open(); }, {"tokenizer.json"});
}

TEST(HostileTokenizer, SpecialTokenFilesAreCheckedToo) {
  TokenizerFolder folder(small_tokenizer());
  folder.put("tokenizer_config.json", {{"bos_token", 3}});
  test::expect_error([&] { folder.open(); }, {"tokenizer_config.json", "bos_token"});
  folder.put("tokenizer_config.json", {{"bos_token", {{"content", 3}}}});
  test::expect_error([&] { folder.open(); }, {"tokenizer_config.json", "bos_token.content"});
  folder.put("tokenizer_config.json", {{"add_bos_token", "yes"}});
  test::expect_error([&] { folder.open(); }, {"tokenizer_config.json", "add_bos_token"});
}

// Whatever one byte is changed to, the file opens or is refused; an opened one works.
TEST(HostileTokenizer, NoSingleChangedByteCrashes) {
  const std::string whole = small_tokenizer().dump();
  const TokenizerFolder folder;
  std::mt19937 random(1);
  int n_opened = 0;
  for (int i = 0; i < 800; ++i) {
    std::string damaged = whole;
    damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    folder.dir.write("tokenizer.json", damaged);
    try {
      const auto tokenizer = folder.open();
      const auto ids = tokenizer->encode("ab c<s>é!", true);
      tokenizer->decode(ids, false);
      ++n_opened;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(n_opened, 50);
}

}  // namespace
}  // namespace sluice::impl
