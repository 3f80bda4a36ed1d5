// The packed token map says what the map said.

#include "report/token_map.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <random>

#include "io/json/value.h"
#include "report/report.h"
#include "unit/report/sample_results.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

std::vector<uint8_t> unpack(const Json& text) {
  const auto& letters = text.get_ref<const std::string&>();
  std::vector<uint8_t> bytes(letters.size() / 4 * 3);
  const int size =
      EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(letters.data()),
                      static_cast<int>(letters.size()));
  EXPECT_EQ(size, static_cast<int>(bytes.size())) << letters;
  // OpenSSL counts what stands for padding as zeros.
  bytes.resize(bytes.size() - static_cast<size_t>(std::count(letters.begin(), letters.end(), '=')));
  return bytes;
}

uint32_t little_endian(const std::vector<uint8_t>& bytes, size_t at, size_t n_bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < n_bytes; ++i) value |= uint32_t{bytes.at(at * n_bytes + i)} << (8 * i);
  return value;
}

Json random_map(size_t n_tokens, size_t n_layers, uint32_t seed) {
  std::mt19937 random(seed);
  Json map = {{"tau", 0.5}, {"n_tokens", n_tokens}, {"space", "normed"}, {"rule", "greedy"}};
  for (size_t i = 0; i < n_tokens; ++i) map["tokens"].push_back("token " + std::to_string(i));
  for (size_t i = 0; i < n_layers; ++i) {
    Json layer = {{"layer", 3 + i}};
    std::string status;
    for (size_t t = 0; t < n_tokens; ++t) {
      status += ".REU"[random() % 4];
      layer["owner"].push_back(random() % n_tokens);
      layer["cosine"].push_back(static_cast<double>(random() % 20001) / 10000 - 1);
    }
    layer["status"] = status;
    map["layers"].push_back(layer);
  }
  return map;
}

void check(const Json& map) {
  const JsonSource source{map, "input", "a hint"};
  check_map(JsonValue(source));
}

void expect_packed_as_given(const Json& map) {
  check(map);
  const Json packed = pack_map(map);
  const auto n_tokens = packed["n_tokens"].get<size_t>();
  const auto owner_bytes = packed["owner_bytes"].get<size_t>();
  EXPECT_EQ(packed["tokens"], map["tokens"]);
  ASSERT_EQ(packed["n_layers"], map["layers"].size());
  const auto status = unpack(packed["status"]), owner = unpack(packed["owner"]),
             cosine = unpack(packed["cosine"]);
  ASSERT_EQ(status.size(), n_tokens * map["layers"].size());
  ASSERT_EQ(owner.size(), owner_bytes * status.size());
  ASSERT_EQ(cosine.size(), 2 * status.size());
  for (size_t i = 0; i < map["layers"].size(); ++i) {
    const Json& layer = map["layers"][i];
    EXPECT_EQ(packed["layer_numbers"][i], layer["layer"]);
    for (size_t t = 0; t < n_tokens; ++t) {
      const size_t at = i * n_tokens + t;
      ASSERT_EQ(".REU"[status[at]], layer["status"].get_ref<const std::string&>()[t]);
      ASSERT_EQ(little_endian(owner, at, owner_bytes), layer["owner"][t].get<uint32_t>());
      const auto scaled = static_cast<int16_t>(little_endian(cosine, at, 2));
      // Rounded to the nearest of 32767 steps.
      ASSERT_NEAR(scaled / 32767.0, layer["cosine"][t].get<double>(), 0.5001 / 32767);
    }
  }
}

TEST(TokenMap, IsPackedAsGiven) {
  expect_packed_as_given(random_map(1, 1, 1));
  expect_packed_as_given(random_map(37, 5, 2));
  expect_packed_as_given(random_map(512, 12, 3));
}

TEST(TokenMap, OwnersTakeFourBytesWhereTwoAreTooFew) {
  EXPECT_EQ(pack_map(random_map(65536, 1, 4))["owner_bytes"], 2);
  const Json map = random_map(65537, 1, 5);
  EXPECT_EQ(pack_map(map)["owner_bytes"], 4);
  expect_packed_as_given(map);
}

TEST(TokenMap, RoundOffBeyondOneIsOne) {
  Json map = random_map(2, 1, 6);
  map["layers"][0]["cosine"] = {1.001, -1.001};
  check(map);
  const auto cosine = unpack(pack_map(map)["cosine"]);
  EXPECT_EQ(static_cast<int16_t>(little_endian(cosine, 0, 2)), 32767);
  EXPECT_EQ(static_cast<int16_t>(little_endian(cosine, 1, 2)), -32767);
}

struct Damage {
  const char* name;
  void (*apply)(Json& map);
  std::vector<std::string> fragments;
};

class DamagedMap : public testing::TestWithParam<Damage> {};

TEST_P(DamagedMap, IsRefusedWithItsPlace) {
  Json results = test::sample_analyze();
  GetParam().apply(results["map"]);
  test::expect_error([&] { check_results(results, "x.json"); }, GetParam().fragments);
}

INSTANTIATE_TEST_SUITE_P(
    Report, DamagedMap,
    testing::Values(Damage{"TokensMissing",
                           [](Json& m) { m["tokens"].erase(0); },
                           {"x.json: map.tokens: has 3 elements, map.n_tokens is 4"}},
                    Damage{"StatusShort",
                           [](Json& m) { m["layers"][1]["status"] = "ER."; },
                           {"map.layers[1].status: has 3 letters"}},
                    Damage{"OwnersLong",
                           [](Json& m) { m["layers"][0]["owner"].push_back(0); },
                           {"map.layers[0].owner: has 5 elements"}},
                    Damage{"CosinesShort",
                           [](Json& m) { m["layers"][0]["cosine"].erase(0); },
                           {"map.layers[0].cosine: has 3 elements"}},
                    Damage{"UnknownLetter",
                           [](Json& m) { m["layers"][0]["status"] = "ERxU"; },
                           {"map.layers[0].status", "letter", "at 2"}},
                    Damage{"OwnerBeyondTheEnd",
                           [](Json& m) { m["layers"][0]["owner"][2] = 4; },
                           {"map.layers[0].owner[2]: expected an integer from 0 to 3, found 4"}},
                    Damage{"OwnerNegative",
                           [](Json& m) { m["layers"][0]["owner"][2] = -1; },
                           {"map.layers[0].owner[2]: expected", "found -1"}},
                    Damage{"OwnerIsAFraction",
                           [](Json& m) { m["layers"][0]["owner"][2] = 0.5; },
                           {"map.layers[0].owner[2]: expected an integer", "found 0.5"}},
                    Damage{"OwnerIsHuge",
                           [](Json& m) { m["layers"][0]["owner"][2] = UINT64_MAX; },
                           {"map.layers[0].owner[2]", "expected an integer"}},
                    Damage{"CosineTooLarge",
                           [](Json& m) { m["layers"][1]["cosine"][3] = 1.0011; },
                           {"map.layers[1].cosine[3]: expected", "found 1.0011"}},
                    Damage{"CosineTooSmall",
                           [](Json& m) { m["layers"][1]["cosine"][3] = -2; },
                           {"map.layers[1].cosine[3]: expected", "found -2"}},
                    Damage{"CosineIsNan",
                           [](Json& m) { m["layers"][1]["cosine"][3] = std::nan(""); },
                           {"map.layers[1].cosine[3]", "expected a finite number, found nan"}},
                    Damage{"CosineIsText",
                           [](Json& m) { m["layers"][1]["cosine"][3] = "1"; },
                           {"map.layers[1].cosine[3]: expected a finite number, found \"1\""}},
                    Damage{"TokenIsNumber",
                           [](Json& m) { m["tokens"][1] = 7; },
                           {"map.tokens[1]: expected a string, found 7"}},
                    Damage{"NoTokens",
                           [](Json& m) { m["n_tokens"] = 0; },
                           {"map.n_tokens: expected", "found 0"}},
                    Damage{"TooManyTokens",
                           [](Json& m) { m["n_tokens"] = 1 << 21; },
                           {"map.n_tokens: expected", "found 2097152"}},
                    Damage{"NoLayers",
                           [](Json& m) { m["layers"] = Json::array(); },
                           {"map.layers: has 0 elements"}},
                    Damage{"TooManyLayers",
                           [](Json& m) { m["layers"] = Json(1025, m["layers"][0]); },
                           {"map.layers: has 1025 elements"}},
                    Damage{"TooManyCells",
                           [](Json& m) {
                             m["n_tokens"] = 1 << 20;
                             m["layers"] = Json(17, m["layers"][0]);
                           },
                           {"1048576 tokens x 17 layers"}},
                    Damage{"NoRule", [](Json& m) { m.erase("rule"); }, {"map: has no `rule`"}},
                    Damage{"IsAnArray",
                           [](Json& m) { m = Json::array(); },
                           {"map: expected an object, found an array"}}),
    [](const auto& damage) { return damage.param.name; });

}  // namespace
}  // namespace sluice::impl
