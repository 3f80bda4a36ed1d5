// A copy of a golden checkpoint with a tokenizer, to use as it is or to damage.

#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "paths.h"
#include "unit/test_files.h"

namespace sluice::impl::test {

// One token per character, 64 in all, the vocabulary of the golden models: <unk>, space, line end,
// letters, `.`, `,`, six digits, and the end of text, which is 63 as in their config.json.
inline nlohmann::json letter_tokenizer() {
  const std::string characters = " \nabcdefghijklmnopqrstuvwxyz.,ABCDEFGHIJKLMNOPQRSTUVWXYZ012345";
  nlohmann::json vocab = {{"<unk>", 0}, {"<|endoftext|>", 63}};
  for (size_t i = 0; i < characters.size(); ++i) vocab[std::string(1, characters[i])] = i + 1;
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 63}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Split"},
            {"pattern", {{"Regex", "[\\s\\S]"}}},
            {"behavior", "Isolated"},
            {"invert", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "<unk>"}}}};
}

// Text of the tokenizer's letters: sentences of random words. Fixed seed; `n_bytes` long.
inline std::string letter_text(size_t n_bytes) {
  std::string text;
  uint32_t state = 12345;
  const auto random = [&state](uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
  };
  while (text.size() < n_bytes) {
    for (uint32_t i = 0, n = 1 + random(8); i < n; ++i)
      text += static_cast<char>('a' + static_cast<char>(random(26)));
    text += random(12) == 0 ? ".\n" : " ";
  }
  text.resize(n_bytes);
  return text;
}

// Replaces the one place where `from` stands.
inline void replace_once(std::string& bytes, const std::string& from, const std::string& to) {
  const size_t at = bytes.find(from);
  if (at == bytes.npos) throw std::runtime_error("`" + from + "` is not in the fixture");
  bytes.replace(at, from.size(), to);
}

class ModelFolder {
 public:
  // `golden` is a folder below tests/golden/models.
  explicit ModelFolder(const std::string& golden = "gpt2") {
    namespace fs = std::filesystem;
    for (const auto& entry : fs::directory_iterator(golden_file("models/" + golden)))
      if (!entry.path().filename().string().starts_with("golden."))
        fs::copy_file(entry.path(), dir_.path() / entry.path().filename());
    dir_.write("tokenizer.json", letter_tokenizer().dump());
    dir_.write("tokenizer_config.json",
               R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})");
  }

  static std::filesystem::path golden_file(const std::string& name) {
    return test::golden_dir() / name;
  }

  std::string path() const { return dir_.path().string(); }
  std::string file(const std::string& name) const { return (dir_.path() / name).string(); }
  std::string write(const std::string& name, std::string_view content) const {
    return dir_.write(name, content).string();
  }
  void remove(const std::string& name) const { std::filesystem::remove(dir_.path() / name); }

  void edit_bytes(const std::string& name, const std::function<void(std::string&)>& edit) const {
    std::string bytes = read_bytes(dir_.path() / name);
    edit(bytes);
    dir_.write(name, bytes);
  }
  void edit_json(const std::string& name, const std::function<void(nlohmann::json&)>& edit) const {
    edit_bytes(name, [&](std::string& bytes) {
      nlohmann::json json = nlohmann::json::parse(bytes);
      edit(json);
      bytes = json.dump();
    });
  }
  void set_config(const std::string& key, const nlohmann::json& value) const {
    edit_json("config.json", [&](nlohmann::json& json) { json[key] = value; });
  }

  // The header of a safetensors file and the data behind it.
  void edit_tensors(const std::function<void(nlohmann::json&, std::string&)>& edit,
                    const std::string& name = "model.safetensors") const {
    edit_bytes(name, [&](std::string& bytes) {
      uint64_t length = 0;
      std::memcpy(&length, bytes.data(), sizeof(length));
      nlohmann::json header = nlohmann::json::parse(bytes.substr(sizeof(length), length));
      std::string data = bytes.substr(sizeof(length) + length);
      edit(header, data);
      bytes = safetensors_from_header(header.dump(), data);
    });
  }

  // Gives a table `n_rows` rows, its own over and over; config.json is the caller's.
  void repeat_rows(const std::string& table, int64_t n_rows) const {
    edit_tensors([&](nlohmann::json& header, std::string& data) {
      nlohmann::json& entry = header.at(table);
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      const auto row_bytes = (end - begin) / entry["shape"][0].get<size_t>();
      std::string rows;
      while (rows.size() < row_bytes * static_cast<size_t>(n_rows))
        rows += data.substr(begin, end - begin);
      rows.resize(row_bytes * static_cast<size_t>(n_rows));
      header["spare"] = entry;  // the old bytes must belong to a tensor
      entry["shape"][0] = n_rows;
      entry["data_offsets"] = {data.size(), data.size() + rows.size()};
      data += rows;
    });
  }

  // A file of tests/golden/gguf, copied into the folder after `edit`; returns its path.
  std::string gguf(const std::string& golden, const std::function<void(std::string&)>& edit) const {
    std::string bytes = read_bytes(golden_file("gguf/" + golden));
    edit(bytes);
    return write("model.gguf", bytes);
  }

 private:
  TempDir dir_;
};

inline nlohmann::json read_results(const std::string& path) {
  return nlohmann::json::parse(read_bytes(path));
}

}  // namespace sluice::impl::test
