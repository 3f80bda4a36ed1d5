// A model with one sequence, timed request by request: whoever asks decides what runs between two
// samples.

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace sluice::impl::bench {

// "f32" or "bf16"; throws Error for another name.
DType dtype_of(std::string_view name);

// The same tokens every time: token i of every sequence that is timed.
int32_t benchmark_token(int64_t i, int64_t vocab);
std::vector<int32_t> benchmark_tokens(int64_t n, int64_t vocab);

// Bytes of the files that hold the weights.
int64_t weight_file_bytes(const Checkpoint& checkpoint);

// What a model may take at most that keeps its weights as they are stored: 1.1 times the file, the
// cache, and 64 MB.
double peak_memory_bound(int64_t file_bytes, int64_t cache_bytes);

// The likeliest token, and by how much: its score less the second's, over the standard deviation of
// all scores.
struct Likeliest {
  int32_t token;
  double margin;
};

class TimedModel {
 public:
  // Loads the model and makes a cache of `capacity` positions. Throws Error where the model is no
  // decoder or does not have as many positions.
  TimedModel(std::shared_ptr<const Checkpoint> checkpoint, DType dtype, int64_t capacity);

  Model& model() { return model_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  int64_t capacity() const { return cache_.capacity(); }
  int64_t cache_bytes() const;  // of all its positions

  // A prefill of n tokens into an empty cache, with the scores after the last, in ms.
  double prefill_ms(int64_t n);
  // One token decoded after `depth` others, with its scores, in ms: the mean of n_steps. Those
  // before it are not timed, and stay from one call to the next.
  double decode_ms(int64_t depth, int64_t n_steps);
  // The n likeliest tokens after a prompt, each given those before it.
  std::vector<Likeliest> greedy(std::span<const int32_t> prompt, int64_t n);

 private:
  void check_room(int64_t n) const;
  void read(std::span<const int32_t> tokens);
  Likeliest likeliest() const;

  std::shared_ptr<const Checkpoint> checkpoint_;
  Model model_;
  KvCache cache_;
  Buffer scores_;        // (1, vocab) f32
  int64_t n_known_ = 0;  // positions of the cache that hold benchmark tokens
};

}  // namespace sluice::impl::bench
