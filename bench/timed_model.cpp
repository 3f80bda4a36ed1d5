#include "timed_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "eval/timing.h"
#include "model/generate.h"

namespace sluice::impl::bench {
namespace {

using SharedCheckpoint = std::shared_ptr<const Checkpoint>;

const SharedCheckpoint& checked(const SharedCheckpoint& checkpoint, int64_t capacity) {
  const ModelSpec& spec = checkpoint->spec();
  const std::string path = checkpoint->path.string();
  if (!spec.causal) throw Error(path + ": " + spec.family + " is an encoder and does not decode");
  if (capacity < 1 || capacity > spec.max_positions)
    throw Error(fmt::format("{}: a context of {} was asked for, the model has {}", path, capacity,
                            spec.max_positions));
  return checkpoint;
}

}  // namespace

DType dtype_of(std::string_view name) {
  if (name == "bf16") return DType::kBF16;
  if (name == "f32") return DType::kF32;
  throw Error("dtype: expected \"f32\" or \"bf16\", found \"" + std::string(name) + "\"");
}

int32_t benchmark_token(int64_t i, int64_t vocab) { return static_cast<int32_t>(i * 7919 % vocab); }

std::vector<int32_t> benchmark_tokens(int64_t n, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(benchmark_token(i, vocab));
  return tokens;
}

int64_t weight_file_bytes(const Checkpoint& checkpoint) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(checkpoint.path))
    return static_cast<int64_t>(fs::file_size(checkpoint.path));
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint.path))
    if (entry.path().extension() == ".safetensors")
      bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

double peak_memory_bound(int64_t file_bytes, int64_t cache_bytes) {
  return 1.1 * static_cast<double>(file_bytes) + static_cast<double>(cache_bytes) + 64e6;
}

TimedModel::TimedModel(std::shared_ptr<const Checkpoint> checkpoint, DType dtype, int64_t capacity)
    : checkpoint_(std::move(checkpoint)),
      model_(checked(checkpoint_, capacity), make_cpu_backend(dtype),
             {.context = capacity, .progress = {}}),
      cache_(model_.make_cache(1, capacity)),
      scores_(host_buffer(DType::kF32, {1, model_.spec().vocab})) {
  if (!model_.has_head())
    throw Error(checkpoint_->path.string() + ": the checkpoint has no output head");
}

int64_t TimedModel::cache_bytes() const {
  return KvCache::bytes_needed(model_.spec(), model_.backend().compute_dtype(), 1,
                               cache_.capacity());
}

void TimedModel::check_room(int64_t n) const {
  if (n < 0 || n > cache_.capacity())
    throw Error(
        fmt::format("{} tokens were asked for, the cache has room for {}", n, cache_.capacity()));
}

void TimedModel::read(std::span<const int32_t> tokens) {
  for (size_t begin = 0; begin < tokens.size(); begin += kPrefillTokens) {
    const size_t n = std::min<size_t>(kPrefillTokens, tokens.size() - begin);
    const ConstTensor hidden = model_.forward(tokens.subspan(begin, n), cache_);
    if (begin + n == tokens.size())
      model_.logits(hidden.rows_from(static_cast<int64_t>(n) - 1, 1), scores_.view());
  }
}

double TimedModel::prefill_ms(int64_t n) {
  check_room(n);
  if (n < 1) throw Error("a prefill has one token or more");
  const std::vector<int32_t> tokens = benchmark_tokens(n, model_.spec().vocab);
  cache_.truncate(0);
  n_known_ = 0;
  const double ms = time_ms([&] { read(tokens); });
  n_known_ = n;
  return ms;
}

double TimedModel::decode_ms(int64_t depth, int64_t n_steps) {
  check_room(depth);
  check_room(n_steps);
  check_room(depth + n_steps);
  if (n_steps < 1) throw Error("decoding takes one step or more");
  const std::vector<int32_t> tokens = benchmark_tokens(depth + n_steps, model_.spec().vocab);
  const std::span<const int32_t> all(tokens);
  n_known_ = std::min(n_known_, depth);
  cache_.truncate(n_known_);
  if (n_known_ < depth)
    read(all.subspan(static_cast<size_t>(n_known_), static_cast<size_t>(depth - n_known_)));
  const double ms = time_ms([&] {
    for (const int32_t& token : all.last(static_cast<size_t>(n_steps)))
      model_.logits(model_.forward({&token, 1}, cache_), scores_.view());
  });
  n_known_ = depth + n_steps;
  return ms / static_cast<double>(n_steps);
}

Likeliest TimedModel::likeliest() const {
  const std::span<const float> scores(scores_.view().data<float>(),
                                      static_cast<size_t>(model_.spec().vocab));
  const auto best = std::max_element(scores.begin(), scores.end());
  double second = -std::numeric_limits<double>::infinity(), sum = 0, squares = 0;
  for (auto score = scores.begin(); score != scores.end(); ++score) {
    if (score != best) second = std::max(second, double{*score});
    sum += *score;
    squares += double{*score} * *score;
  }
  const auto n = static_cast<double>(scores.size());
  const double deviation = std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
  return {static_cast<int32_t>(best - scores.begin()),
          deviation > 0 ? (*best - second) / deviation : 0};
}

std::vector<Likeliest> TimedModel::greedy(std::span<const int32_t> prompt, int64_t n) {
  check_room(n);
  check_room(std::ssize(prompt) + n);
  if (prompt.empty() || n < 1) throw Error("a prompt and its answer have one token or more");
  cache_.truncate(0);
  n_known_ = 0;
  read(prompt);
  std::vector<Likeliest> answer{likeliest()};
  while (std::ssize(answer) < n) {
    read({&answer.back().token, 1});
    answer.push_back(likeliest());
  }
  return answer;
}

}  // namespace sluice::impl::bench
