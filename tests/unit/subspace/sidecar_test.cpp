#include "subspace/sidecar.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "fuzz/harness.h"
#include "unit/subspace/random_matrices.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kStoredWidth = 8, kInner = 12;

BasesModel model() {
  return {.sha256 = "abc",
          .n_layers = 2,
          .widths = {.d_model = kStoredWidth, .attention = kStoredWidth, .inner = kInner}};
}

Basis small_basis(int64_t layer, BasisInput input, int64_t rank) {
  Basis basis;
  basis.layer = layer;
  basis.input = input;
  basis.d = model().widths.of(input);
  basis.rank = rank;
  basis.vectors = as_floats(random_orthonormal(rank, basis.d, 1));
  for (int64_t i = 0; i < basis.d; ++i)
    basis.spectrum.push_back(std::pow(0.5, static_cast<double>(i + 1)));
  return basis;
}

Bases small_bases() {
  Bases bases{.model_sha256 = "abc",
              .text_path = "a \"text\"\n",
              .text_sha256 = "def",
              .n_tokens = 77,
              .list = {}};
  bases.list.push_back(small_basis(0, BasisInput::kAttentionInput, 3));
  bases.list.push_back(small_basis(1, BasisInput::kMlpInner, kInner));
  bases.list.push_back(small_basis(1, BasisInput::kSelectionResidual, 1));
  return bases;
}

std::string written(const Bases& bases) {
  const TempDir dir;
  write_bases(bases, dir.path() / "b.safetensors");
  return read_bytes(dir.path() / "b.safetensors");
}

TEST(Sidecar, ComesBackAsItWas) {
  const TempDir dir;
  const Bases bases = small_bases();
  write_bases(bases, dir.path() / "b.safetensors");
  const Bases back = read_bases(dir.path() / "b.safetensors", model());
  EXPECT_EQ(back.model_sha256, "abc");
  EXPECT_EQ(back.text_path, bases.text_path);
  EXPECT_EQ(back.text_sha256, "def");
  EXPECT_EQ(back.n_tokens, 77);
  ASSERT_EQ(back.list.size(), bases.list.size());
  for (const Basis& basis : bases.list) {
    const Basis* found = back.find(basis.layer, basis.input);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->rank, basis.rank);
    EXPECT_EQ(found->d, basis.d);
    EXPECT_EQ(found->vectors, basis.vectors);
    EXPECT_EQ(found->spectrum, basis.spectrum);  // powers of two: float32 has them exactly
  }
  EXPECT_EQ(back.find(0, BasisInput::kMlpInner), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);  // no .part
}

struct BadSidecar {
  const char* name;
  std::function<std::string()> bytes;
  std::string expected;
};
void PrintTo(const BadSidecar& bad, std::ostream* out) { *out << bad.name; }

std::function<std::string()> changed(const std::function<void(Bases&)>& change) {
  return [change] {
    Bases bases = small_bases();
    change(bases);
    return written(bases);
  };
}

// The same file with a tensor called otherwise, or other metadata.
std::function<std::string()> edited(const std::function<void(nlohmann::json&)>& edit) {
  return [edit] {
    const std::string bytes = written(small_bases());
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    auto header = nlohmann::json::parse(bytes.substr(8, length));
    edit(header);
    return safetensors_from_header(header.dump(), bytes.substr(8 + length));
  };
}
std::function<std::string()> renamed(const std::string& from, const std::string& to) {
  return edited([=](nlohmann::json& header) {
    header[to] = header[from];
    header.erase(from);
  });
}

const std::vector<BadSidecar>& bad_sidecars() {
  const std::string first = "layers.0.attention_input.vectors";
  const auto metadata = [](const char* key, const char* value) {
    return edited([=](nlohmann::json& header) { header["__metadata__"][key] = value; });
  };
  static const std::vector<BadSidecar> list = {
      {"OtherModel", changed([](Bases& b) { b.model_sha256 = "xyz"; }), "another model"},
      {"OtherFormat", metadata("format", "pt"), "format is `pt`"},
      {"OtherVersion", metadata("version", "2"), "version `2`"},
      {"NoMetadata", edited([](nlohmann::json& h) { h.erase("__metadata__"); }),
       "`format` is missing"},
      {"TokensAreWords", metadata("n_tokens", "many"), "n_tokens is `many`"},
      {"TokensAreNegative", metadata("n_tokens", "-1"), "n_tokens is `-1`"},
      {"Truncated", [] { return written(small_bases()).substr(0, 1200); }, "out of range"},
      {"TruncatedHeader", [] { return written(small_bases()).substr(0, 100); }, "header length"},
      {"OtherTensor", renamed(first, "wte.weight"), "is not part of a basis"},
      {"LayerIsText", renamed(first, "layers.x.attention_input.vectors"), "is not part of a basis"},
      {"NoLayer", renamed(first, "layers..vectors"), "is not part of a basis"},
      {"OtherInput", renamed(first, "layers.0.queries.vectors"), "is not part of a basis"},
      {"OtherPart", renamed(first, "layers.0.attention_input.means"), "is not part of a basis"},
      {"LayerBeyondTheModel", renamed(first, "layers.2.attention_input.vectors"),
       "beyond the model's 2"},
      {"LayerBeyondNumbers", renamed(first, "layers.99999999999999999999.attention_input.vectors"),
       "is not part of a basis"},
      {"OtherWidth", renamed(first, "layers.01.mlp_inner.vectors"), "(rank, 12)"},
      {"NoSpectrum",
       renamed("layers.0.attention_input.spectrum", "layers.1.attention_input.spectrum"),
       "no spectrum"},
      {"NoVectors", renamed(first, "layers.1.attention_input.vectors"), "has no vectors"},
      {"OtherType", edited([=](nlohmann::json& h) { h[first]["dtype"] = "I32"; }), "expected F32"},
      {"OtherShape", edited([=](nlohmann::json& h) {
         h[first]["shape"] = {8, 3};
       }),
       "is (8, 3)"},
      {"ThreeAxes", edited([=](nlohmann::json& h) {
         h[first]["shape"] = {1, 3, 8};
       }),
       "is (1, 3, 8)"},
      {"RankOverWidth", changed([](Bases& b) {
         b.list[0].rank = 9;
         b.list[0].vectors.resize(9 * 8);
       }),
       "is (9, 8)"},
      {"RankOfZero", changed([](Bases& b) {
         b.list[0].rank = 0;
         b.list[0].vectors.clear();
       }),
       "is (0, 8)"},
      {"ShortSpectrum", changed([](Bases& b) { b.list[0].spectrum.resize(2); }),
       "no spectrum of 3"},
      {"VectorIsNan",
       changed([](Bases& b) { b.list[0].vectors[5] = std::numeric_limits<float>::quiet_NaN(); }),
       "not finite"},
      {"SpectrumIsInfinite",
       changed([](Bases& b) { b.list[0].spectrum[0] = std::numeric_limits<double>::infinity(); }),
       "not finite"},
      {"RowTooLong", changed([](Bases& b) {
         for (size_t i = 0; i < 8; ++i) b.list[0].vectors[i] *= 1.001f;
       }),
       "not orthonormal"},
      {"RowTwice", changed([](Bases& b) {
         std::copy_n(b.list[0].vectors.begin(), 8, b.list[0].vectors.begin() + 8);
       }),
       "not orthonormal"},
      {"RowOfZeros", changed([](Bases& b) { std::fill_n(b.list[0].vectors.begin(), 8, 0.0f); }),
       "not orthonormal"},
      {"SpectrumRises", changed([](Bases& b) { b.list[0].spectrum[1] = 0.9; }), "descending"},
      {"SpectrumIsNegative", changed([](Bases& b) { b.list[0].spectrum[7] = -0.1; }), "descending"},
      {"SpectrumOverOne", changed([](Bases& b) {
         for (double& share : b.list[0].spectrum) share = 0.5;
       }),
       "descending"},
  };
  return list;
}

class RefusesSidecar : public testing::TestWithParam<BadSidecar> {};

TEST_P(RefusesSidecar, WithOneLine) {
  const std::string bytes = GetParam().bytes();
  expect_error([&] { parse_bases(as_bytes(bytes), "bases", model()); },
               {"bases: ", GetParam().expected});
}

INSTANTIATE_TEST_SUITE_P(Files, RefusesSidecar, testing::ValuesIn(bad_sidecars()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Sidecar, LayersThatAreOneNumberInTwoSpellingsAreRefused) {
  Bases bases = small_bases();
  bases.list.push_back(small_basis(1, BasisInput::kAttentionInput, 3));
  const std::string bytes = written(bases);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  auto header = nlohmann::json::parse(bytes.substr(8, length));
  for (const char* part : {"vectors", "spectrum"}) {
    const std::string from = std::string("layers.1.attention_input.") + part;
    header[std::string("layers.00.attention_input.") + part] = header[from];
    header.erase(from);
  }
  const std::string changed = safetensors_from_header(header.dump(), bytes.substr(8 + length));
  expect_error([&] { parse_bases(as_bytes(changed), "bases", model()); }, {"is there twice"});
}

// What mutation_test does for the other parsers: one to three damaged bytes, or a cut.
TEST(Sidecar, MutationsEndInErrorsOrBases) {
  const std::string good = written(small_bases());
  std::mt19937 random(20240607);
  int n_accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = good;
    for (uint32_t change = 0; change < 1 + random() % 3; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    // A copy that ends where its memory ends, so that a sanitizer sees reads past the end.
    const std::vector<std::byte> exact(as_bytes(bytes).begin(), as_bytes(bytes).end());
    ASSERT_NO_THROW(fuzz::expect_only_errors([&] {
      const Bases bases = parse_bases(exact, "bases", model());
      ++n_accepted;
      for (const Basis& basis : bases.list) EXPECT_LE(basis.energy(), 1 + 1e-4);
    })) << "iteration "
        << i;
  }
  EXPECT_GT(n_accepted, 0);     // low bits of a number change nothing that matters
  EXPECT_LT(n_accepted, 2000);  // most damage is noticed
}

TEST(Sidecar, AFolderThatIsNotThereIsAnError) {
  const TempDir dir;
  expect_error([&] { write_bases(small_bases(), dir.path() / "no" / "b.safetensors"); },
               {"cannot be written"});
  expect_error([&] { read_bases(dir.path() / "none", model()); }, {"none", "cannot open"});
}

}  // namespace
}  // namespace sluice::impl::test
