// Writes a tiny GPT-2 with random weights and a tokenizer of single bytes, for trying the program
// without a download. It predicts nothing; it only has the form of a model.
//
//   make_tiny_model FOLDER

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int64_t kLayers = 4, kWidth = 64, kHeads = 4, kVocab = 257, kPositions = 512;

// The 256 characters that stand for bytes in byte-level vocabularies: printable ones for
// themselves, the others for characters from U+0100 on.
std::vector<std::string> byte_alphabet() {
  const auto utf8 = [](int code) {
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return std::string{static_cast<char>(0xc0 | (code >> 6)),
                       static_cast<char>(0x80 | (code & 63))};
  };
  std::vector<std::string> alphabet;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    alphabet.push_back(utf8(printable ? byte : next++));
  }
  return alphabet;
}

nlohmann::json tokenizer_json() {
  nlohmann::json vocab = {{"<|endoftext|>", 0}};
  const auto alphabet = byte_alphabet();
  for (size_t i = 0; i < alphabet.size(); ++i) vocab[alphabet[i]] = i + 1;
  return {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 0},
         {"content", "<|endoftext|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

// Collects tensors, then writes header and data.
class Safetensors {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, float middle, float spread) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const size_t begin = data_.size() * sizeof(float);
    for (int64_t i = 0; i < count; ++i) data_.push_back(middle + spread * uniform());
    header_[name] = {{"dtype", "F32"},
                     {"shape", shape},
                     {"data_offsets", {begin, data_.size() * sizeof(float)}}};
  }
  void write(const std::filesystem::path& path) const {
    const std::string header = header_.dump();
    const uint64_t size = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof(size));
    file << header;
    file.write(reinterpret_cast<const char*>(data_.data()),
               static_cast<std::streamsize>(data_.size() * sizeof(float)));
    if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
  }

 private:
  float uniform() { return static_cast<float>(random_() >> 8) * 0x1p-23f - 1.0f; }  // -1 to 1
  std::mt19937 random_{7};
  nlohmann::json header_;
  std::vector<float> data_;
};

void write_weights(const std::filesystem::path& path) {
  Safetensors file;
  const auto norm = [&](const std::string& stem) {
    file.add(stem + ".weight", {kWidth}, 1.0f, 0.1f);
    file.add(stem + ".bias", {kWidth}, 0.0f, 0.1f);
  };
  const auto conv = [&](const std::string& stem, int64_t n_in, int64_t n_out) {
    file.add(stem + ".weight", {n_in, n_out}, 0.0f, 0.2f);
    file.add(stem + ".bias", {n_out}, 0.0f, 0.1f);
  };
  file.add("transformer.wte.weight", {kVocab, kWidth}, 0.0f, 0.3f);
  file.add("transformer.wpe.weight", {kPositions, kWidth}, 0.0f, 0.1f);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string stem = fmt::format("transformer.h.{}.", layer);
    norm(stem + "ln_1");
    conv(stem + "attn.c_attn", kWidth, 3 * kWidth);
    conv(stem + "attn.c_proj", kWidth, kWidth);
    norm(stem + "ln_2");
    conv(stem + "mlp.c_fc", kWidth, 4 * kWidth);
    conv(stem + "mlp.c_proj", 4 * kWidth, kWidth);
  }
  norm("transformer.ln_f");
  file.write(path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: make_tiny_model FOLDER\n");
    return 2;
  }
  try {
    const std::filesystem::path folder = argv[1];
    std::filesystem::create_directories(folder);
    write_weights(folder / "model.safetensors");
    std::ofstream(folder / "tokenizer.json") << tokenizer_json().dump();
    std::ofstream(folder / "tokenizer_config.json")
        << R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})";
    const nlohmann::json config = {
        {"model_type", "gpt2"}, {"n_layer", kLayers},        {"n_embd", kWidth}, {"n_head", kHeads},
        {"vocab_size", kVocab}, {"n_positions", kPositions}, {"eos_token_id", 0}};
    std::ofstream(folder / "config.json") << config.dump(1);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "make_tiny_model: {}\n", e.what());
    return 1;
  }
}
