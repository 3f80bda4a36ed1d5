// What `sluice demo` tells: one function per chapter. Each measures, prints, and gives back what
// the command that does the same alone would write as its results.

#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "io/tokenizer/tokenizer.h"
#include "model/model.h"

namespace sluice::impl::cli {

// The context in use, where the model has so much.
inline constexpr int64_t kDemoTokens = 2048;

struct DemoScene {
  const Checkpoint& checkpoint;
  const Tokenizer& tokenizer;
  Model& model;
  std::string model_path, text_path;  // as one would type them
  std::vector<int32_t> tokens;        // of the text's beginning, as many as the demo can use
  std::string model_sha256;           // read once for all parts
  std::vector<std::string> flags;     // that say where and how to compute, where given
  bool quiet = false;                 // no progress bars
};

// What a chapter that measures found, and what follows from it, in a sentence or two.
struct Measured {
  nlohmann::json results;
  std::string conclusion;
};

// Which tokens stand for others, in the selection that attention uses.
nlohmann::json tell_representatives(const DemoScene& scene);
// The paper's settings and tables.
nlohmann::json tell_cascade(const DemoScene& scene);
// What the modes lose and read.
Measured tell_quality(const DemoScene& scene);
// One prompt, continued with dense attention, `refine` and `keys`: three results.
std::vector<nlohmann::json> tell_generation(const DemoScene& scene);
// Prefill and decoding at a few lengths.
Measured tell_speed(const DemoScene& scene);
// A plan tuned to a contract. Nothing where the text is too short, or the model, which reads so
// many tokens a second, would take long: then a line says so.
std::optional<nlohmann::json> tell_contract(const DemoScene& scene, double tokens_per_s);

}  // namespace sluice::impl::cli
