// What is kept from run to run, and what is left alone.

#include "tune/measurements.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

TEST(Measurements, GoOnWhereTheyWereAndOnlyThere) {
  const TempDir dir;
  const auto path = dir.path() / "m";
  const nlohmann::json key = {{"model", "a"}};
  {
    Measurements first(path, key);
    EXPECT_FALSE(first.resumed());
    first.add_kl("x", 1.5);
    first.add_kl("x", 2.5);
    first.set_times({{"prefill", 3}});
    first.save();
  }
  const Measurements again(path, key);
  EXPECT_TRUE(again.resumed());
  EXPECT_EQ(again.kl("x"), (std::vector<double>{1.5, 2.5}));
  EXPECT_TRUE(again.kl("y").empty());
  EXPECT_EQ(again.times().at("prefill"), 3);
  dir.write("broken", R"({"format": "sluice-measurements 2", "key": {"model": "a"}, "kl": 1})");
  EXPECT_FALSE(Measurements(dir.path() / "broken", key).resumed());
  dir.write("odd", R"({"format": "sluice-measurements 2", "key": {"model": "a"},
                       "kl": {"x": ["no"], "y": [-1], "z": [0.5]}})");
  const Measurements odd(dir.path() / "odd", key);
  EXPECT_TRUE(odd.kl("x").empty() && odd.kl("y").empty());
  EXPECT_EQ(odd.kl("z"), std::vector<double>{0.5});
}

TEST(Measurements, AFileOfSomethingElseIsLeftAlone) {
  const TempDir dir;
  for (const char* content : {"my notes", R"({"format": "sluice-measurements 2", "kl")", "{}",
                              "[1]", R"({"format": "sluice-plan"})", R"({"format": 2})"})
    EXPECT_THROW(Measurements(dir.write("notes.txt", content), {}), Error) << content;
  EXPECT_FALSE(Measurements(dir.write("empty", ""), {}).resumed());
}

TEST(Measurements, NestedTooDeeplyAreRefused) {
  const TempDir dir;
  const std::string nested = std::string(100'000, '[') + std::string(100'000, ']');
  for (const char* part : {"key", "kl", "times"})
    expect_error(
        [&] {
          Measurements(dir.write("m", R"({"format": "sluice-measurements 2", ")" +
                                          std::string(part) + "\": " + nested + "}"),
                       {});
        },
        {"m: ", "JSON nests deeper than 64 levels"});
}

TEST(Measurements, GoOnWhateverBytesTheirKeyHas) {
  const TempDir dir;
  const auto path = dir.path() / "m";
  const nlohmann::json key = {{"separator", "\xff"}};
  Measurements(path, key).save();
  EXPECT_TRUE(Measurements(path, key).resumed());
}

// They may have taken hours.
TEST(Measurements, OfAnotherRunAreRefusedAndLeftAlone) {
  const TempDir dir;
  const auto path = dir.path() / "m";
  Measurements first(path, {{"model", "a"}, {"text", "b"}});
  first.add_kl("x", 1.5);
  first.save();
  try {
    const Measurements other(path, {{"model", "a"}, {"text", "c"}});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("another run (text)"), std::string::npos)
        << error.what();
  }
  for (const char* version : {"1", "3"})
    EXPECT_THROW(Measurements(dir.write("m2", std::string(R"({"format": "sluice-measurements )") +
                                                  version + "\"}"),
                              {}),
                 Error)
        << version;
}

}  // namespace
}  // namespace sluice::impl::test
