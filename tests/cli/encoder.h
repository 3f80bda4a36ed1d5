#pragma once

#include "cli/refusals.h"

namespace sluice::impl::test {

// A checkpoint with a tokenizer that has a mask, and a text in its letters.
struct Encoder {
  explicit Encoder(const char* family) : folder(family), results(folder.file("results.json")) {
    if (std::string_view(family) == "esm") {
      std::filesystem::remove(folder.file("tokenizer.json"));
      std::filesystem::remove(folder.file("tokenizer_config.json"));
      folder.write("vocab.txt", read_bytes(ModelFolder::golden_file("tokenizers/esm/vocab.txt")));
      for (int i = 0; i < 300; ++i) letters += "LAGVSERT"[i * i % 8];
    } else {
      nlohmann::json tokenizer = letter_tokenizer();
      tokenizer["model"]["vocab"].erase("5");
      tokenizer["model"]["vocab"]["[MASK]"] = 62;
      folder.write("tokenizer.json", tokenizer.dump());
      letters = letter_text(300);
    }
    text = folder.write("text.txt", letters);
  }

  ModelFolder folder;
  std::string letters, text, results;
};

}  // namespace sluice::impl::test
