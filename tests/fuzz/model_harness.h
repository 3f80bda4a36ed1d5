// What the structure-aware targets do with a checkpoint: what `inspect` asks for, the weights of
// two ranks that divide it by width, then one forward step of two tokens on the reference backend.

#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "fuzz/edits.h"
#include "fuzz/harness.h"
#include "model/model.h"
#include "paths.h"
#include "unit/test_files.h"

namespace sluice::impl::fuzz {

namespace fs = std::filesystem;

// Sorted, so that an input means the same everywhere.
inline std::vector<fs::path> golden_files(const char* folder, std::string_view extension) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(test::golden_dir() / folder))
    if (entry.path().extension() == extension) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The logits may be anything: edited weights need not be sound.
inline void step(Model& model, std::span<const int32_t> tokens, KvCache& cache) {
  const ConstTensor hidden = model.forward(tokens, cache);
  if (!model.has_head()) return;
  std::vector<float> logits(tokens.size() * static_cast<size_t>(model.spec().vocab));
  model.logits(hidden, Tensor(logits.data(), DType::kF32, {hidden.rows(), model.spec().vocab}));
}

inline void load_two_ranks(const Checkpoint& checkpoint) {
  const auto backend = make_reference_backend(DType::kF32);
  const ModelDescription& whole = checkpoint.description;
  for (const TensorRanges& ranges : divide_tensors(whole, checkpoint.weights(), {}, 2))
    load_weights(description_of(whole, ranges, /*with_biases=*/true), checkpoint.weights(),
                 *backend, {});
}

inline void inspect_and_step(const fs::path& path) {
  expect_only_errors([&] {
    const auto checkpoint = open_checkpoint(path);
    const ModelSpec& spec = checkpoint->spec();
    check_matrix_shapes(checkpoint->description, checkpoint->weights());
    expect_only_errors([&] { open_tokenizer_of(*checkpoint); });
    expect_only_errors([&] { chat_template_of(*checkpoint); });
    packed_bytes(checkpoint->description, DType::kBF16);
    packed_bytes_as_stored(checkpoint->description, checkpoint->weights(), DType::kBF16);
    KvCache::bytes_needed(spec, DType::kF32, 1, 64);
    expect_only_errors([&] { load_two_ranks(*checkpoint); });
    Model model(checkpoint, make_reference_backend(DType::kF32),
                {.context = std::clamp<int64_t>(spec.max_positions, 1, 8), .progress = {}});
    KvCache cache = model.make_cache();
    const std::array<int32_t, 2> tokens = {1, 2};
    step(model, tokens, cache);
  });
}

}  // namespace sluice::impl::fuzz
