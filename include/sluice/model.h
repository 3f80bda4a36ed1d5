// A model in memory, and its tokenizer.

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/error.h"
#include "sluice/export.h"

namespace sluice {

// Where a model runs.
enum class Device : uint8_t {
  kCpu,
  kCuda,       // the first GPU that CUDA sees; an Error in a library that was built without
  kReference,  // plain loops on the CPU, slow: what the others are compared with
};

// The number format of weights, activations and cache. Sums and logits are float32 in both.
enum class DType : uint8_t { kF32, kBF16 };

// The type of a model's matrices in memory. Block types are those of GGUF; a matrix whose width is
// no multiple of a type's block gets kQ8_0, or the plain type of DType.
enum class Weights : uint8_t {
  kAsStored,  // blocks of a .gguf file as they are, other matrices as DType says
  kF32,       // with DType::kF32 only
  kBF16,      // with DType::kBF16 only
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

struct LoadOptions {
  Device device = Device::kCpu;
  DType dtype = DType::kF32;
  int64_t context = 0;  // tokens that a sequence may have; 0: the model's own limit
  // Called with the share of the weights that is loaded, 0 to 1, on the thread that loads.
  std::function<void(double)> progress = {};
  // Expands stored blocks, or quantises the matrices while loading.
  Weights weights = Weights::kAsStored;
};

// What a model is. Sizes are counts; `context` is the one in use.
struct ModelInfo {
  std::string family;  // "gpt2", "llama", …, as config.json spells it
  int64_t n_layers = 0;
  int64_t d_model = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t context = 0;
  int64_t max_context = 0;   // the longest that the model was made for
  bool is_encoder = false;   // sees whole sequences and continues none
  bool has_logits = true;    // false: the checkpoint has no output matrix
  int64_t weight_bytes = 0;  // of the matrices, as they are in memory
  std::string device;        // processor or GPU, for people
  std::vector<int32_t> end_tokens;
};

// Move-only. Sequences share what they need of it, so a model may be moved or destroyed while one
// of its sequences is in use. A model and its sequences are for one thread at a time.
class SLUICE_API Model {
 public:
  // Loads a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a .gguf file.
  // Throws Error for files that are missing, damaged or of an unknown family, for a context beyond
  // the model's, for weights that do not go with the number format, and for a device that is not
  // there. What `progress` throws passes through.
  static Model load(const std::filesystem::path& path, const LoadOptions& options = {});

  Model(Model&& other) noexcept;
  Model& operator=(Model&& other) noexcept;
  ~Model();

  // Valid as long as the model. Throws Error for a model that was moved from, as all below do.
  const ModelInfo& info() const;

  // Token ids of a text. add_special: with what the tokenizer's template adds, such as a first
  // token. Throws Error for a checkpoint without a tokenizer.
  std::vector<int32_t> tokenize(std::string_view text, bool add_special = true) const;
  // The text of token ids; special tokens are left out unless asked for. Throws Error for an id
  // outside of the vocabulary, and for a checkpoint without a tokenizer.
  std::string detokenize(std::span<const int32_t> tokens, bool with_special = false) const;

  struct SLUICE_LOCAL State;  // of the library

 private:
  friend struct Access;
  explicit Model(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Threads that every call uses from now on; 0: one to each processor. Where models are used in
// several threads, each sets it: OpenMP keeps a number for each. Throws Error for a negative count.
SLUICE_API void set_threads(int count);
// Their number. Throws nothing.
SLUICE_API int threads();

}  // namespace sluice
