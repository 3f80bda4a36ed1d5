// What config.json and GGUF metadata say about rotary embedding -> RotarySpec.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/quote.h"
#include "model/families.h"
#include "model/rotary.h"

namespace sluice::impl {
namespace {

using Kind = RotaryScaling::Kind;

// YaRN's factor of attention for a scale, as its paper suggests.
double yarn_attention(double factor, double weight = 1) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1;
}

// Long-rope's, from the ratio of the two lengths.
double longrope_attention(double factor, int64_t original_positions) {
  if (factor <= 1 || original_positions < 2) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original_positions)));
}

// A context that is longer than the checkpoint states is allowed, and used where it is asked for.
void allow_positions(ModelSpec& spec, double n_positions) {
  const auto allowed = static_cast<int64_t>(std::min(n_positions, double{kMaxPositions}));
  if (allowed <= spec.max_positions) return;
  spec.default_context = spec.max_positions;
  spec.max_positions = allowed;
}

void read_yarn(const ConfigReader& object, ModelSpec& spec) {
  RotaryScaling& scaling = spec.rotary.scaling;
  scaling.kind = Kind::kYarn;
  if (spec.rotary.base <= 1) object.refuse("rope_theta", "more than 1");
  const auto beta = [&](const char* key, double fallback) {
    const double value = object.float_or(key, fallback, 0, 1e6);
    return value > 0 ? value : fallback;  // transformers takes 0 as absent
  };
  scaling.beta_fast = beta("beta_fast", 32);
  scaling.beta_slow = beta("beta_slow", 1);
  scaling.truncate = object.bool_or("truncate", true);
  const double mscale = object.float_or("mscale", 0, 0, 1e6);
  const double all_dim = object.float_or("mscale_all_dim", 0, 0, 1e6);
  const double inferred = mscale > 0 && all_dim > 0 ? yarn_attention(scaling.factor, mscale) /
                                                          yarn_attention(scaling.factor, all_dim)
                                                    : yarn_attention(scaling.factor);
  scaling.attention_factor = object.float_or("attention_factor", inferred, 1e-6, 1e6);
  allow_positions(spec, scaling.factor * static_cast<double>(scaling.original_positions));
}

void read_longrope(const ConfigReader& object, ModelSpec& spec) {
  RotaryScaling& scaling = spec.rotary.scaling;
  scaling.kind = Kind::kLongRope;
  const auto factors = [&](const char* key) {
    std::vector<double> values = object.floats(key);
    const auto wanted = static_cast<size_t>(spec.rotary.dim / 2);
    bool good = values.size() == wanted;
    for (const double value : values) good = good && value > 1e-6 && value < 1e15;
    if (!good) object.refuse(key, fmt::format("{} positive numbers", wanted));
    return values;
  };
  scaling.short_factors = factors("short_factor");
  scaling.long_factors = factors("long_factor");
  scaling.attention_factor =
      object.float_or("attention_factor",
                      longrope_attention(scaling.factor, scaling.original_positions), 1e-6, 1e6);
  // Frequencies depend on the context: those of training are in use where nobody asks for more.
  spec.default_context = std::min(scaling.original_positions, spec.max_positions);
}

void read_scaling(const ConfigReader& config, const ConfigReader& object, ModelSpec& spec) {
  const std::string kind_key = object.has("rope_type") ? "rope_type" : "type";
  std::string kind = object.string_or(kind_key, "default");
  // The first files of Phi-3 call long-rope "su" or "yarn".
  if (kind == "su" || (kind == "yarn" && spec.family == "phi3")) kind = "longrope";
  RotaryScaling& scaling = spec.rotary.scaling;
  if (kind == "default") return;
  constexpr const char* kOriginal = "original_max_position_embeddings";
  scaling.original_positions = config.int_or(
      kOriginal, object.int_or(kOriginal, spec.max_positions, 1, kMaxPositions), 1, kMaxPositions);
  const double ratio =
      static_cast<double>(spec.max_positions) / static_cast<double>(scaling.original_positions);
  const bool from_ratio = kind == "yarn" || kind == "longrope";
  scaling.factor = from_ratio ? object.float_or("factor", ratio, 1e-6, 1e9)
                              : object.require_float("factor", 1, 1e6);
  if (kind == "linear") {
    scaling.kind = Kind::kLinear;
  } else if (kind == "dynamic") {
    scaling.kind = Kind::kDynamic;
    scaling.original_positions = spec.max_positions;
    // It states the length of training and stretches to whatever is asked for.
    allow_positions(spec, double{kMaxPositions});
  } else if (kind == "llama3") {
    scaling.kind = Kind::kLlama3;
    scaling.low_frequency_factor = object.require_float("low_freq_factor", 1e-6, 1e6);
    scaling.high_frequency_factor =
        object.require_float("high_freq_factor", scaling.low_frequency_factor, 1e6);
  } else if (kind == "yarn") {
    read_yarn(object, spec);
  } else if (kind == "longrope") {
    read_longrope(object, spec);
  } else {
    object.refuse(kind_key, "default, linear, dynamic, llama3, yarn or longrope");
  }
}

// (dim / 2) divisors of frequencies, as a tensor of the file; empty where it has none.
std::vector<float> read_divisors(const GgufFile& file, const char* name, int64_t dim) {
  const StoredTensor* tensor = file.weights.find(name);
  if (tensor == nullptr) return {};
  if (tensor->shape.numel() != dim / 2)
    throw Error(fmt::format("{}: {} is {}, expected ({})", file.path.string(), name,
                            tensor->shape.str(), dim / 2),
                kGgufHint);
  std::vector<float> values(static_cast<size_t>(dim / 2));
  expand(*tensor, 0, values);
  for (const float value : values) gguf_positive(file, name, value);
  return values;
}

// Keys of a file below ARCH.rope.scaling.
struct GgufScaling {
  const GgufFile& file;
  std::string stem;

  double number(const char* name, double fallback) const {
    const std::string key = stem + name;
    return gguf_positive(file, key, file.find_float(key).value_or(fallback));
  }
  int64_t original_positions(int64_t fallback) const {
    return gguf_int(file, stem + "original_context_length", kMaxPositions, fallback);
  }
  [[noreturn]] void refuse(const char* name, const std::string& found, const char* expected) const {
    throw Error(fmt::format("{}: `{}{}` is {}, expected {}", file.path.string(), stem, name, found,
                            expected),
                "use the model's Hugging Face folder");
  }
};

void read_yarn(const GgufScaling& keys, ModelSpec& spec) {
  RotaryScaling& scaling = spec.rotary.scaling;
  scaling.kind = Kind::kYarn;
  if (spec.rotary.base <= 1)
    throw Error(keys.file.path.string() + ": YaRN needs a `rope.freq_base` of more than 1",
                kGgufHint);
  scaling.factor = keys.number("factor", 1);
  scaling.original_positions = keys.original_positions(spec.max_positions);
  scaling.beta_fast = keys.number("yarn_beta_fast", 32);
  scaling.beta_slow = keys.number("yarn_beta_slow", 1);
  if (keys.number("yarn_ext_factor", 1) != 1) keys.refuse("yarn_ext_factor", "stated", "1");
  if (keys.file.find(keys.stem + "yarn_log_multiplier") != nullptr)
    keys.refuse("yarn_log_multiplier", "stated", "none");
  // The file's factors multiply what the scale implies.
  scaling.attention_factor = keys.number("attn_factor", 1) * keys.number("yarn_attn_factor", 1) *
                             yarn_attention(scaling.factor);
  allow_positions(spec, scaling.factor * static_cast<double>(scaling.original_positions));
}

void read_longrope(const GgufScaling& keys, std::vector<float> short_factors,
                   std::vector<float> long_factors, ModelSpec& spec) {
  RotaryScaling& scaling = spec.rotary.scaling;
  scaling.kind = Kind::kLongRope;
  scaling.short_factors.assign(short_factors.begin(), short_factors.end());
  scaling.long_factors.assign(long_factors.begin(), long_factors.end());
  scaling.original_positions = keys.original_positions(spec.max_positions);
  const double ratio =
      static_cast<double>(spec.max_positions) / static_cast<double>(scaling.original_positions);
  scaling.attention_factor =
      keys.number("attn_factor", longrope_attention(ratio, scaling.original_positions));
  spec.default_context = std::min(scaling.original_positions, spec.max_positions);
}

}  // namespace

// transformers 5 writes `rope_parameters`, earlier versions `rope_scaling` and the base on top; the
// kind is `rope_type`, or `type` in the oldest files.
void read_rotary(const ConfigReader& config, ModelSpec& spec, const RotaryKeys& keys) {
  spec.position = PositionKind::kRotary;
  RotarySpec& rotary = spec.rotary;
  const auto parameters = config.object("rope_parameters");
  const auto object = parameters ? parameters : config.object("rope_scaling");
  rotary.base = config.float_or(keys.base, keys.default_base, 1, 1e15);
  double part = config.float_or(keys.part, keys.default_part, 0, 1);
  if (object) {
    rotary.base = object->float_or("rope_theta", rotary.base, 1, 1e15);
    part = object->float_or("partial_rotary_factor", part, 0, 1);
  }
  rotary.dim = static_cast<int64_t>(static_cast<double>(spec.head_dim) * part);
  if (rotary.dim < 2 || rotary.dim % 2 != 0)
    throw Error(fmt::format("{}: rotary embedding on {} of {} dimensions, expected an even number",
                            config.label(), rotary.dim, spec.head_dim),
                "are `head_dim` and the rotary share right?");
  if (object) read_scaling(config, *object, spec);
}

void read_rotary(const GgufFile& file, const std::string& architecture, ModelSpec& spec) {
  spec.position = PositionKind::kRotary;
  RotarySpec& rotary = spec.rotary;
  const std::string stem = architecture + ".rope.";
  rotary.dim = gguf_int(file, stem + "dimension_count", spec.head_dim, spec.head_dim);
  if (rotary.dim % 2 != 0)
    throw Error(fmt::format("{}: `{}dimension_count` is odd", file.path.string(), stem), kGgufHint);
  rotary.base =
      gguf_positive(file, stem + "freq_base", file.find_float(stem + "freq_base").value_or(10000));
  const GgufScaling keys{file, stem + "scaling."};
  std::vector<float> of_short = read_divisors(file, "rope_factors_short.weight", rotary.dim);
  std::vector<float> of_long = read_divisors(file, "rope_factors_long.weight", rotary.dim);
  const bool factors = !of_short.empty() && !of_long.empty();
  std::string kind = factors ? "longrope" : "none";
  if (file.find(keys.stem + "type") != nullptr) kind = file.require_string(keys.stem + "type");
  if (kind == "linear") {
    rotary.scaling.kind = Kind::kLinear;
    rotary.scaling.factor = file.require_float(keys.stem + "factor");
    gguf_positive(file, keys.stem + "factor", rotary.scaling.factor);
  } else if (kind == "yarn") {
    read_yarn(keys, spec);
  } else if (kind == "longrope" && factors) {
    read_longrope(keys, std::move(of_short), std::move(of_long), spec);
  } else if (kind != "none") {
    keys.refuse("type", quote(kind), "none, linear, yarn, or longrope with its factors");
  }
  const std::vector<float> divisors = read_divisors(file, "rope_freqs.weight", rotary.dim);
  if (divisors.empty()) return;
  rotary.frequencies = rotary_frequencies(rotary, 0);
  for (size_t i = 0; i < divisors.size(); ++i) rotary.frequencies[i] /= divisors[i];
}

}  // namespace sluice::impl
