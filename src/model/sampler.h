// Picks the next token from scores over the vocabulary.

#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace sluice::impl {

struct SamplerOptions {
  float temperature = 0;         // 0: always the likeliest token
  int64_t top_k = 0;             // keep the k likeliest, 0 for all
  float top_p = 1;               // keep the likeliest that together reach this probability
  float min_p = 0;               // keep those at least this likely, relative to the likeliest
  float repetition_penalty = 1;  // > 1 makes tokens already seen less likely
  uint64_t seed = 0;
};

// The same seed, options and scores give the same tokens on every machine.
class Sampler {
 public:
  // Throws Error for a value out of range.
  explicit Sampler(const SamplerOptions& options);

  // scores (vocab) are changed; one that is NaN or +inf is an Error. Ties go to the smaller id.
  // `seen` is prompt and answer so far.
  int32_t pick(std::span<float> scores, std::span<const int32_t> seen);

 private:
  struct Candidate {
    int32_t id;
    float score;  // then probability
  };
  void penalise(std::span<float> scores, std::span<const int32_t> seen) const;
  int32_t draw(std::span<const Candidate> candidates);

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

}  // namespace sluice::impl
