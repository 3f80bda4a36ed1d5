#include "batch_cases.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/runs/bench_model.h"
#include "eval/timing.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "table.h"

namespace sluice::impl::bench {
namespace {

constexpr int64_t kSteps = 16;

// Sequences that decode kSteps tokens from the same lengths again and again.
class Decoding {
 public:
  Decoding(Model& model, const std::vector<int64_t>& lengths) : model_(model), lengths_(lengths) {
    for (const int64_t length : lengths_) {
      caches_.push_back(model.make_cache(1, length + kSteps));
      model.forward(random_tokens(model.spec(), length), caches_.back());
    }
    scores_ = host_buffer(DType::kF32, {std::ssize(lengths_), model.spec().vocab});
  }

  // One alone as generate() does it, several as a ragged batch.
  void run() {
    const int32_t token = 1;
    std::vector<SequenceTokens> sequences;
    for (size_t i = 0; i < caches_.size(); ++i) {
      caches_[i].truncate(lengths_[i]);
      sequences.push_back({{&token, 1}, &caches_[i]});
    }
    for (int64_t step = 0; step < kSteps; ++step)
      model_.logits(caches_.size() == 1 ? model_.forward({&token, 1}, caches_.front())
                                        : model_.forward_ragged(sequences),
                    scores_.view());
  }

 private:
  Model& model_;
  std::vector<int64_t> lengths_;
  std::vector<KvCache> caches_;
  Buffer scores_;
};

// n lengths around the mean, which their own is.
std::vector<int64_t> lengths_around(int64_t mean, int64_t n) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < n; ++i) lengths.push_back(mean / 2 + mean * (2 * i + 1) / (2 * n));
  return lengths;
}

void run_dtype(const nlohmann::json& description, Model& model, int repeat, Table& table,
               nlohmann::json& results) {
  const int64_t n_tokens = description.at("n_tokens");
  std::vector<int64_t> counts = {1};  // one alone is what the others are compared with
  for (const int64_t count : description.at("sequences"))
    if (count > 1) counts.push_back(count);
  std::vector<std::unique_ptr<Decoding>> candidates;
  std::vector<std::function<void()>> pieces;
  for (const int64_t count : counts) {
    candidates.push_back(std::make_unique<Decoding>(model, lengths_around(n_tokens, count)));
    pieces.emplace_back([&decoding = *candidates.back()] { decoding.run(); });
  }
  auto samples = time_interleaved(repeat, pieces);
  const std::string dtype(dtype_name(model.backend().compute_dtype()));
  for (size_t i = 0; i < counts.size(); ++i) {
    for (double& ms : samples[i]) ms /= static_cast<double>(kSteps);
    const auto count = static_cast<double>(counts[i]);
    const Ratio ratio = ratio_of(samples[0], samples[i]);
    const double ms = median(samples[i]), rate = 1e3 * count / ms;
    table.row({dtype, fmt::format("{}", counts[i]), fmt::format("{:.2f}", ms),
               fmt::format("{:.0f}", rate),
               fmt::format("{:.2f} ({:.2f}-{:.2f})", count * ratio.middle, count * ratio.low,
                           count * ratio.high)});
    results["cases"].push_back(
        {{"name", fmt::format("{} batch {}", description.at("name").get<std::string>(), counts[i])},
         {"dtype", dtype},
         {"n_tokens", n_tokens},
         {"n_sequences", counts[i]},
         {"mode", "dense"},
         {"samples_ms", samples[i]},
         {"median_ms", ms},
         {"tokens_per_s", rate},
         {"share_of_single", count * ratio.middle}});
  }
}

}  // namespace

void run_batch_case(const nlohmann::json& description, MakeBackend make, int repeat,
                    nlohmann::json& results) {
  const std::string name = description.at("name");
  Table table(name, results);
  table.columns({"dtype", "sequences", "ms a step", "tokens/s", "throughput of one alone"});
  const auto checkpoint = synthetic_checkpoint(ConfigReader(description.at("config"), name));
  for (const std::string dtype : description.at("dtypes")) {
    Model model(checkpoint, make(dtype == "bf16" ? DType::kBF16 : DType::kF32), {});
    run_dtype(description, model, repeat, table, results);
  }
}

}  // namespace sluice::impl::bench
