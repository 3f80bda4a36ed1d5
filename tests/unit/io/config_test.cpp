#include "io/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using test::expect_error;
using test::TempDir;

ConfigReader reader_of(std::string_view text) { return ConfigReader::parse(text, "config.json"); }

TEST(ConfigReader, ReadsEveryKindOfValueFromAFile) {
  const TempDir dir;
  const ConfigReader config(dir.write("config.json", R"({
    "n_layer": 12, "eps": 1e-5, "rope_theta": 10000, "tied": true, "act": "gelu",
    "architectures": ["A", "B"], "eos_token_id": [1, 2], "bos_token_id": 1,
    "factors": [1, 2.5], "rope_scaling": {"factor": 8.0, "inner": {"x": 1}}, "nothing": null})"));
  EXPECT_EQ(config.label(), (dir.path() / "config.json").string());
  EXPECT_EQ(config.require_int("n_layer", 1, 100), 12);
  EXPECT_EQ(config.require_float("eps"), 1e-5);
  EXPECT_EQ(config.require_float("rope_theta"), 10000.0);
  EXPECT_TRUE(config.bool_or("tied", false));
  EXPECT_EQ(config.require_string("act"), "gelu");
  EXPECT_EQ(config.strings("architectures"), (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(config.ints("eos_token_id", 0, 10), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(config.ints("bos_token_id", 0, 10), (std::vector<int64_t>{1}));
  EXPECT_EQ(config.floats("factors"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(config.object("rope_scaling")->require_float("factor"), 8.0);
  EXPECT_EQ(config.object("rope_scaling")->object("inner")->require_int("x", 0, 9), 1);
}

TEST(ConfigReader, AbsentAndNullGiveTheFallback) {
  const ConfigReader config = reader_of(R"({"a": null})");
  for (const char* key : {"a", "b"}) {
    EXPECT_FALSE(config.has(key));
    EXPECT_EQ(config.int_or(key, 7, 0, 1), 7);  // a fallback need not lie in the range
    EXPECT_EQ(config.float_or(key, 0.5), 0.5);
    EXPECT_TRUE(config.bool_or(key, true));
    EXPECT_EQ(config.string_or(key, "x"), "x");
    EXPECT_TRUE(config.strings(key).empty());
    EXPECT_TRUE(config.ints(key, 0, 1).empty());
    EXPECT_TRUE(config.floats(key).empty());
    EXPECT_FALSE(config.object(key).has_value());
    expect_error([&] { config.require_int(key, 1, 9); }, {"expected an integer from 1 to 9"});
    expect_error([&] { config.require_float(key); }, {"expected a finite number"});
    expect_error([&] { config.require_string(key); }, {"expected a string"});
  }
}

TEST(ConfigReader, InnerReaderOutlivesTheOuter) {
  std::optional<ConfigReader> inner;
  {
    const ConfigReader config = reader_of(R"({"o": {"x": 3}})");
    inner = config.object("o");
  }
  EXPECT_EQ(inner->require_int("x", 0, 9), 3);
}

TEST(ConfigReader, IntegersUpToTheEndsOfInt64AreExact) {
  const ConfigReader config =
      reader_of(R"({"max": 9223372036854775807, "min": -9223372036854775808})");
  EXPECT_EQ(config.require_int("max", 0, ConfigReader::kMaxInt), ConfigReader::kMaxInt);
  EXPECT_EQ(config.require_int("min", -ConfigReader::kMaxInt - 1, 0), -ConfigReader::kMaxInt - 1);
}

TEST(ConfigReader, WrongValuesAreToldWithWhatWasExpected) {
  const ConfigReader config = reader_of(R"({
    "word": "twelve", "zero": 0, "big": 18446744073709551615, "huge": 1e30, "half": 0.5,
    "whole": 12.0, "flag": true, "list": [1, "x"], "object": {"word": "x", "deep": {"list": []}},
    "line": "a\nb", "long": ")" + std::string(1000, 'l') +
                                        R"("})");
  const auto says = [&](auto action, const std::string& expected) {
    expect_error(action, {"config.json: " + expected});
  };
  says([&] { config.require_int("word", 1, 1000000); },
       "word: expected an integer from 1 to 1000000, found \"twelve\"");
  says([&] { config.int_or("zero", 1, 1, 9); }, "zero: expected an integer from 1 to 9, found 0");
  says([&] { config.require_int("big", 0, ConfigReader::kMaxInt); },
       "big: expected an integer of 0 or more, found 18446744073709551615");
  says([&] { config.require_int("huge", 0, 9); },
       "huge: expected an integer from 0 to 9, found 1e+30");
  says([&] { config.require_int("half", 0, 9); },
       "half: expected an integer from 0 to 9, found 0.5");
  says([&] { config.require_int("whole", 0, 99); },
       "whole: expected an integer from 0 to 99, found 12.0");
  says([&] { config.require_int("flag", 0, 9); },
       "flag: expected an integer from 0 to 9, found true");
  says([&] { config.require_int("list", 0, 9); },
       "list: expected an integer from 0 to 9, found an array");
  says([&] { config.require_int("none", 0, 9); },
       "none: expected an integer from 0 to 9, found nothing");
  says([&] { config.require_float("word"); }, "word: expected a finite number, found \"twelve\"");
  says([&] { config.require_float("flag"); }, "flag: expected a finite number, found true");
  says([&] { config.require_float("half", 1.0); },
       "half: expected a number of 1 or more, found 0.5");
  says([&] { config.float_or("half", 1, 0, 0.25); },
       "half: expected a number from 0 to 0.25, found 0.5");
  says([&] { config.bool_or("zero", true); }, "zero: expected true or false, found 0");
  says([&] { config.require_string("zero"); }, "zero: expected a string, found 0");
  says([&] { config.string_or("object", ""); }, "object: expected a string, found an object");
  says([&] { config.strings("word"); }, "word: expected an array, found \"twelve\"");
  says([&] { config.strings("list"); }, "list[0]: expected a string, found 1");
  says([&] { config.ints("list", 0, 9); }, "list[1]: expected an integer from 0 to 9, found \"x\"");
  says([&] { config.floats("list"); }, "list[1]: expected a finite number, found \"x\"");
  says([&] { config.object("list"); }, "list: expected an object, found an array");
  says([&] { config.object("object")->require_int("word", 0, 9); },
       "object.word: expected an integer from 0 to 9, found \"x\"");
  says([&] { config.object("object")->object("deep")->bool_or("list", true); },
       "object.deep.list: expected true or false, found an array");
  says([&] { config.require_int("line", 0, 9); },
       "line: expected an integer from 0 to 9, found \"a\\x0ab\"");
  says([&] { config.require_int("long", 0, 9); },
       "long: expected an integer from 0 to 9, found \"llll");
  says([&] { config.refuse("word", "gelu or relu"); },
       "word: expected gelu or relu, found \"twelve\"");
}

TEST(ConfigReader, ALabelledObjectIsReadLikeAFile) {
  const ConfigReader config(nlohmann::json{{"x", 4}}, "built-in");
  EXPECT_EQ(config.require_int("x", 0, 9), 4);
  expect_error([] { ConfigReader(nlohmann::json(3), "built-in"); },
               {"built-in: expected an object, found 3"});
}

struct BadText {
  std::string name;
  std::string text;
  std::string expected;
};

class BadConfig : public testing::TestWithParam<BadText> {};

TEST_P(BadConfig, IsRefusedOnOneLineThatNamesTheFile) {
  const TempDir dir;
  const auto path = dir.write("config.json", GetParam().text);
  expect_error([&] { ConfigReader{path}; }, {"config.json: ", GetParam().expected});
}

INSTANTIATE_TEST_SUITE_P(
    , BadConfig,
    testing::Values(BadText{"Empty", "", "is empty, expected JSON"},
                    BadText{"Cut", "{\"a\": ", "a: not valid JSON: parse error at line 1"},
                    BadText{"Newlines", "{\n\n\"a\n", "not valid JSON"},
                    BadText{"NotUtf8", "{\"\xc3\x28\": 1}", "not valid JSON"},
                    BadText{"NaNValue", "{\"a\": NaN}", "a: not valid JSON"},
                    BadText{"OverflowingNumber", "{\"a\": 1e999}", "a: not valid JSON"},
                    BadText{"Array", "[]", "expected an object, found an array"},
                    BadText{"Null", "null", "expected an object, found null"},
                    BadText{"DeepNesting", std::string(1'000'000, '['),
                            "[0]: JSON nests deeper than 64 levels"},
                    BadText{"TooLong", std::string((4u << 20) + 1, ' '), "is 4194305 bytes long"}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace sluice::impl
