// The one reader of JSON: what it gives, what it refuses, and how a refusal names its place.

#include <gtest/gtest.h>

#include "io/json/value.h"
#include "io/json_file.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using test::expect_error;
using Json = nlohmann::json;

constexpr JsonLimits kLarge = {.bytes = size_t{64} << 20, .values = size_t{1} << 24};

std::string refusal_of(const std::string& text, const std::vector<std::string>& fragments,
                       const JsonLimits& limits = kLarge) {
  return expect_error([&] { parse_json(text, "f.json", limits); }, fragments);
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// A tree with values of it to read.
struct Sample {
  explicit Sample(const std::string& text) : tree(parse_json(text, "f.json", kLarge)) {}
  JsonValue root() const { return JsonValue(source); }

  Json tree;
  JsonSource source{tree, "f.json", "the file's own hint"};
};

// ---- text -> tree ----

TEST(ParseJson, GivesWhatTheLibraryGives) {
  for (const char* text :
       {"null", "true", "-0", "3", "-3", "18446744073709551615", "9223372036854775807", "0.1",
        "1e300", "\"\"", "\"a\\u00e9\\n\\ud83d\\ude00\"", "[]", "{}", "[[], {}, [1, [2]], null]",
        R"({"a": {"b": [1, {"c": "d"}, 2.5]}, "": 0, "z": false})", " [ 1 ] "})
    EXPECT_EQ(parse_json(text, "f.json", kLarge), Json::parse(text)) << text;
}

TEST(ParseJson, OfTextThatIsNotJsonNamesThePlace) {
  refusal_of("", {"f.json: is empty, expected JSON"});
  refusal_of("nope", {"f.json: not valid JSON: parse error at line 1"});
  refusal_of("{\"a\": ", {"f.json: a: not valid JSON"});
  refusal_of("[1, 2, ", {"f.json: [2]: not valid JSON"});
  refusal_of(R"({"a": [{"b": 1}, {"c": [0, x]}]})", {"f.json: a[1].c[1]: not valid JSON"});
  refusal_of(R"({"a": {"b": 1}, "c": NaN})", {"f.json: c: not valid JSON"});
  refusal_of(R"({"a": 1e999})", {"f.json: a: not valid JSON", "1e999"});
  refusal_of("{} {}", {"f.json: not valid JSON"});
}

TEST(ParseJson, RefusesBytesThatAreNotUtf8) {
  for (const char* bytes : {"\xff", "\xc3\x28", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf"}) {
    refusal_of("{\"a\": \"" + std::string(bytes) + "\"}", {"f.json: a: not valid JSON", "UTF-8"});
    refusal_of("{\"" + std::string(bytes) + "\": 1}", {"f.json: not valid JSON", "UTF-8"});
  }
}

TEST(ParseJson, ShortensWhatItShows) {
  EXPECT_LT(refusal_of("[\"" + std::string(5 << 20, 'x'), {"f.json: [0]: not valid"}).size(), 500u);
  EXPECT_LT(refusal_of("{\"" + std::string(5 << 20, 'x') + "\": !}", {"bytes)`: not"}).size(),
            500u);
  const std::string key = "{\"" + std::string(90, 'k') + "\":";
  EXPECT_LT(refusal_of(repeated(key, 20) + "!", {"f.json: ...kkk", "k: not valid"}).size(), 500u);
}

TEST(ParseJson, RefusesDeepNesting) {
  const auto nested = [](int n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(parse_json(nested(64), "f.json", kLarge), Json::parse(nested(64)));
  refusal_of(nested(65), {"f.json: ", "[0]: JSON nests deeper than 64 levels"});
  refusal_of(nested(100'000), {"JSON nests deeper than 64 levels"});
  refusal_of(std::string(5 << 20, '['), {"JSON nests deeper than 64 levels"});
  refusal_of(repeated("{\"a\":", 100'000), {"f.json: ", ".a.a: JSON nests deeper than 64 levels"});
}

TEST(ParseJson, RefusesMoreThanItsLimits) {
  const JsonLimits small = {.bytes = 20, .values = 4};
  EXPECT_EQ(parse_json("[1, {\"a\": 2}]", "f.json", small).size(), 2u);
  refusal_of("[1, {\"a\": 2}, 3]", {"f.json: holds more than 4 values"}, small);
  refusal_of("[[], [], [], []]", {"f.json: holds more than 4 values"}, small);
  refusal_of(std::string(21, ' '), {"f.json: is 21 bytes long, expected at most 20"}, small);
  // 96 bytes for an object in an array.
  const JsonLimits narrow = {.bytes = 100, .values = 100, .memory = 1000};
  EXPECT_EQ(parse_json("[" + repeated("{},", 9) + "{}]", "f.json", narrow).size(), 10u);
  refusal_of("[" + repeated("{},", 10) + "{}]",
             {"f.json: its values take more than 1000 bytes of memory"}, narrow);
  const test::TempDir folder;
  const auto path = folder.write("g.json", std::string(21, ' '));
  expect_error([&] { read_json_file(path, small); }, {"g.json: is 21 bytes long"});
}

TEST(ParseJson, OfAKeyThatIsThereTwiceRefusesOrTakesTheLast) {
  const std::string text = R"({"a": [{"b": {"x": 1}, "c": 2, "b": 3}]})";
  refusal_of(text, {"f.json: a[0].b: is there twice"});
  JsonLimits last = kLarge;
  last.repeated = RepeatedKeys::kLastCounts;
  EXPECT_EQ(parse_json(text, "f.json", last), Json::parse(R"({"a": [{"b": 3, "c": 2}]})"));
  // The same key in two objects is no repetition.
  EXPECT_EQ(parse_json(R"([{"a": 1}, {"a": 2}])", "f.json", kLarge).size(), 2u);
}

// Time that grew with the square of the size would be minutes here.
TEST(ParseJson, ReadsMegabytesOfSmallValues) {
  const Json objects = parse_json("[{}" + repeated(",{}", 400'000) + "]", "f.json", kLarge);
  EXPECT_EQ(objects.size(), 400'001u);
  const Json nested =
      parse_json("[[{\"a\":[1]}]" + repeated(",[{\"a\":[1]}]", 100'000) + "]", "f.json", kLarge);
  EXPECT_EQ(nested.size(), 100'001u);
  EXPECT_EQ(nested.back(), Json::parse(R"([{"a":[1]}])"));
  std::string entries = "{\"k\": {}";
  for (int i = 0; i < 300'000; ++i) entries += ",\"" + std::to_string(i) + "\":{}";
  EXPECT_EQ(parse_json(entries + "}", "f.json", kLarge).size(), 300'001u);
}

TEST(ParseJson, AnErrorBehindMegabytesNamesItsPlace) {
  const Sample sample("[{}" + repeated(",{}", 400'000) + ",{\"a\": \"x\"}]");
  expect_error([&] { sample.root().element(400'001).at("a").integer(0, 9); },
               {"f.json: [400001].a: expected an integer from 0 to 9, found \"x\""});
}

// ---- values ----

TEST(JsonValue, ReadsEveryType) {
  const Sample sample(R"({"i": -3, "n": 0.5, "b": true, "s": "text", "o": {"x": [1, 2]},
                          "null": null, "max": 9223372036854775807})");
  const JsonValue root = sample.root();
  EXPECT_EQ(root.at("i").integer(-3, -3), -3);
  EXPECT_EQ(root.at("max").integer(0, JsonValue::kMaxInt), JsonValue::kMaxInt);
  EXPECT_EQ(root.at("i").number(), -3);
  EXPECT_EQ(root.at("n").number(0.5, 0.5), 0.5);
  EXPECT_TRUE(root.at("b").boolean());
  EXPECT_EQ(root.at("s").string(), "text");
  EXPECT_EQ(root.at("s").string(4), "text");
  EXPECT_EQ(root.at("o").at("x").array().size(), 2u);
  EXPECT_EQ(root.at("o").at("x").element(1).integer(0, 9), 2);
  EXPECT_EQ(root.at("o").object().size(), 1u);
  EXPECT_TRUE(root.find("i") && !root.find("null") && !root.find("none"));
  EXPECT_EQ(root.integer_or("i", 7, -9, 9), -3);
  EXPECT_EQ(root.number_or("n", 7), 0.5);
  for (const char* key : {"null", "none"}) {
    EXPECT_EQ(root.integer_or(key, 7, 0, 1), 7);
    EXPECT_EQ(root.number_or(key, 7, 0, 1), 7);
    EXPECT_TRUE(root.boolean_or(key, true));
    EXPECT_EQ(root.string_or(key, "x"), "x");
  }
}

TEST(JsonValue, RefusesOtherTypesAndRangesByPath) {
  const Sample sample(R"({"layers": [{}, {"tau": "much", "heads": [0.5, 18446744073709551615]}],
                          "b": 1, "o": {"s": null}})");
  const JsonValue root = sample.root(), layer = root.at("layers").element(1);
  const auto says = [](auto action, const std::string& message) {
    EXPECT_EQ(expect_error(action, {}), "f.json: " + message);
  };
  says([&] { layer.at("tau").number(0, 1); },
       "layers[1].tau: expected a number from 0 to 1, found \"much\"");
  says([&] { layer.at("tau").number(); },
       "layers[1].tau: expected a finite number, found \"much\"");
  const JsonValue heads = layer.at("heads");
  says([&] { heads.element(0).number(1); },
       "layers[1].heads[0]: expected a number of 1 or more, found 0.5");
  says([&] { heads.element(0).number(-JsonValue::kMaxNumber, 0); },
       "layers[1].heads[0]: expected a number of 0 or less, found 0.5");
  says([&] { heads.element(0).integer(0, 9); },
       "layers[1].heads[0]: expected an integer from 0 to 9, found 0.5");
  says([&] { heads.element(1).integer(0, JsonValue::kMaxInt); },
       "layers[1].heads[1]: expected an integer of 0 or more, found 18446744073709551615");
  says([&] { heads.string(); }, "layers[1].heads: expected a string, found an array");
  says([&] { heads.object(); }, "layers[1].heads: expected an object, found an array");
  says([&] { heads.expect_size(3, "n_heads"); }, "layers[1].heads: has 2 elements, n_heads is 3");
  says([&] { root.array(); }, "expected an array, found an object");
  says([&] { root.at("b").boolean(); }, "b: expected true or false, found 1");
  says([&] { root.boolean_or("b", true); }, "b: expected true or false, found 1");
  says([&] { root.at("o").at("s").string(); }, "o.s: expected a string, found null");
  says([&] { layer.at("tau").string(3); },
       "layers[1].tau: expected a string of 1 to 3 bytes, found 4 bytes");
  says([&] { layer.at("none"); }, "layers[1]: has no `none`");
  says([&] { root.at("none"); }, "has no `none`");
  says([&] { layer.expect_keys({"tau"}); }, "layers[1].heads: is not a known key");
  says([&] { layer.expected_at("none", "a thing"); },
       "layers[1].none: expected a thing, found nothing");
  says([&] { layer.expected_at("tau", "a thing"); },
       "layers[1].tau: expected a thing, found \"much\"");
  says([&] { layer.refuse("is odd"); }, "layers[1]: is odd");
}

TEST(JsonValue, HintsAreTheFilesOrItsOwn) {
  const Sample sample("[1]");
  const auto hint_of = [](auto action) {
    try {
      action();
    } catch (const Error& error) {
      return error.hint();
    }
    return std::string("no Error");
  };
  EXPECT_EQ(hint_of([&] { sample.root().object(); }), "the file's own hint");
  EXPECT_EQ(hint_of([&] { sample.root().refuse("x", "another"); }), "another");
  EXPECT_EQ(hint_of([&] { sample.root().expected("x", "another"); }), "another");
}

TEST(JsonValue, NamesAreFoundInAList) {
  const Sample sample(R"(["one", "two", 1])");
  const auto of = [](std::string_view name) {
    return name == "one" ? std::optional(1) : std::nullopt;
  };
  EXPECT_EQ(sample.root().element(0).named(of, "one"), 1);
  expect_error([&] { sample.root().element(1).named(of, "one"); },
               {"f.json: [1]: expected one, found \"two\""});
  expect_error([&] { sample.root().element(2).named(of, "one"); },
               {"f.json: [2]: expected one, found 1"});
}

TEST(JsonValue, KeysOfAFileAreShownSafely) {
  const Sample sample(R"({"a\nb": 1, "a.b": 1, "": 1, "<s>": 1, ")" + std::string(5000, 'k') +
                      R"(": 1, "\n)" + std::string(117, 'k') + R"(": 1, "s": ")" +
                      std::string(5 << 20, 'x') + R"("})");
  const auto says = [&](const std::string& key, const std::string& fragment) {
    const std::string message =
        expect_error([&] { sample.root().at(key).string(); }, {"f.json: " + fragment});
    EXPECT_LT(message.size(), 300u);
  };
  says("a\nb", "`a\\x0ab`: expected a string, found 1");
  says("a.b", "`a.b`: expected");
  says("", "``: expected");
  says("<s>", "<s>: expected");
  says(std::string(5000, 'k'), "`kkk");
  // Cut and escaped it is as long as it was.
  says('\n' + std::string(117, 'k'), "`\\x0akkk");
  const std::string message =
      expect_error([&] { sample.root().at("s").boolean(); }, {"xxx... (5242880 bytes)\""});
  EXPECT_LT(message.size(), 300u);
}

}  // namespace
}  // namespace sluice::impl
