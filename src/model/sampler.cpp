// Sampling: penalty, temperature, top-k, top-p and min-p in that order, then one draw.

#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "core/error.h"
#include "model/scores_error.h"

namespace sluice::impl {
namespace {

void require(bool ok, const char* flag, float value, const char* expected) {
  if (!ok)
    throw Error(std::string(flag) + " is " + std::to_string(value) + ", expected " + expected,
                "see sluice generate --help");
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  require(options.temperature >= 0 && options.temperature <= 100, "--temperature",
          options.temperature, "0 to 100");
  require(options.top_k >= 0, "--top-k", static_cast<float>(options.top_k), "0 or more");
  require(options.top_p > 0 && options.top_p <= 1, "--top-p", options.top_p,
          "more than 0, up to 1");
  require(options.min_p >= 0 && options.min_p <= 1, "--min-p", options.min_p, "0 to 1");
  require(options.repetition_penalty > 0 && options.repetition_penalty <= 100,
          "--repetition-penalty", options.repetition_penalty, "more than 0, up to 100");
}

void Sampler::penalise(std::span<float> scores, std::span<const int32_t> seen) const {
  const std::unordered_set<int32_t> distinct(seen.begin(), seen.end());
  for (const int32_t id : distinct) {
    float& score = scores[static_cast<size_t>(id)];
    score = score > 0 ? score / options_.repetition_penalty : score * options_.repetition_penalty;
  }
}

int32_t Sampler::pick(std::span<float> scores, std::span<const int32_t> seen) {
  // -inf says that a token is impossible; anything else that is not a number is damage.
  const bool sound =
      std::all_of(scores.begin(), scores.end(), [](float x) { return x < INFINITY; });
  if (!sound || *std::max_element(scores.begin(), scores.end()) == -INFINITY) throw ScoresError();
  if (options_.repetition_penalty != 1) penalise(scores, seen);
  if (options_.temperature == 0)
    return static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());

  const float top = *std::max_element(scores.begin(), scores.end());
  candidates_.clear();
  for (size_t id = 0; id < scores.size(); ++id)
    candidates_.push_back({static_cast<int32_t>(id), (scores[id] - top) / options_.temperature});
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  };
  const bool all = options_.top_k <= 0 || options_.top_k >= static_cast<int64_t>(scores.size());
  if (all) {
    std::sort(candidates_.begin(), candidates_.end(), likelier);
  } else {
    std::partial_sort(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(),
                      likelier);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  double total = 0;
  for (Candidate& c : candidates_) total += c.score = std::exp(c.score);
  for (Candidate& c : candidates_) c.score = static_cast<float>(c.score / total);

  size_t keep = candidates_.size();
  double reached = 0;
  for (size_t i = 0; i < keep; ++i) {
    if (candidates_[i].score < options_.min_p * candidates_.front().score) keep = i;
    if ((reached += candidates_[i].score) >= options_.top_p) keep = std::min(keep, i + 1);
  }
  return draw({candidates_.data(), std::max<size_t>(keep, 1)});
}

int32_t Sampler::draw(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.score;
  // 53 random bits; the standard's distributions differ between libraries.
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (const Candidate& c : candidates)
    if ((left -= c.score) < 0) return c.id;
  return candidates.back().id;
}

}  // namespace sluice::impl
