#include "eval/runs/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "core/peak_memory.h"
#include "eval/audit/audit_results.h"
#include "eval/results.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

// Tokens that stand for themselves over all, mean over the sets of accelerated layers.
std::optional<double> reps_fraction_of(const KvCache& cache, int64_t n_layers) {
  double sum = 0;
  int64_t n_sets = 0;
  for (int64_t layer = 0; layer < n_layers; ++layer)
    if (const Selector* selector = cache.selector(layer))
      for (const TokenSet& set : selector->sets()) {
        sum += static_cast<double>(set.n_clusters) / static_cast<double>(set.n_tokens());
        ++n_sets;
      }
  if (n_sets == 0) return {};
  return sum / static_cast<double>(n_sets);
}

// Linear layers of the tokens in a cache.
LinearWork linear_work(const KvCache& cache, const ModelSpec& spec) {
  LinearWork work;
  work.add(cache, spec);
  return work;
}

// Tokens fast between two counts, over all gsi groups.
std::optional<double> fast_between(const LinearWork& before, const LinearWork& after) {
  int64_t n_fast = 0, n_tokens = 0;
  for (size_t i = 0; i < after.groups().size(); ++i) {
    const LinearCounts &first = before.groups()[i].counts, &last = after.groups()[i].counts;
    if (after.groups()[i].plan.kind != LinearKind::kGsi) continue;
    n_fast += last.n_fast - first.n_fast;
    n_tokens += last.n_tokens - first.n_tokens;
  }
  if (n_tokens == 0) return {};
  return static_cast<double>(n_fast) / static_cast<double>(n_tokens);
}

// Share of the weights read for n tokens after the first n_before: dense layers read as much for
// every token, so shares weigh as tokens do.
double weights_between(const LinearWork& before, const LinearWork& after, int64_t n_before,
                       int64_t n) {
  const auto first = static_cast<double>(n_before), more = static_cast<double>(n);
  return (after.weight_bytes_fraction() * (first + more) - before.weight_bytes_fraction() * first) /
         more;
}

std::optional<double> pairs_dropped_of(const KvCache& cache, int64_t n_layers) {
  double dropped = 0, all = 0;
  for (int64_t layer = 0; layer < n_layers; ++layer)
    if (const Selector* selector = cache.selector(layer);
        selector != nullptr && selector->spec().basis != nullptr) {
      dropped += static_cast<double>(selector->pairs_dropped());
      all += static_cast<double>(selector->pairs_dropped() + selector->products());
    }
  if (all == 0) return {};
  return dropped / all;
}

// Every candidate at one length.
class LengthBench {
 public:
  LengthBench(Model& model, std::span<const int32_t> tokens, int64_t n_tokens, BenchResult& result)
      : model_(model),
        tokens_(tokens),
        n_tokens_(n_tokens),
        result_(result),
        scores_(host_buffer(DType::kF32, {1, model.spec().vocab})) {
    const int64_t n_predict = decode_tokens();
    for (size_t i = 0; i < result.candidates.size(); ++i) {
      const BenchCandidate& candidate = result.candidates[i];
      const bool follows = !candidate.follows || candidate.follows(n_tokens, n_predict);
      const Plan plan = follows ? candidate.plan : Plan{};
      caches_.push_back(model.make_cache(1, n_tokens + n_predict, plan.attention, plan.linear));
      prefills_.push_back({.name = fmt::format("pp{}", n_tokens),
                           .n_tokens = n_tokens,
                           .tokens_per_sample = n_tokens,
                           .candidate = i,
                           .ran_dense = !follows,
                           .samples = {},
                           .reps_fraction = {}});
      decodes_.push_back({.name = fmt::format("tg@{}", n_tokens),
                          .n_tokens = n_tokens,
                          .tokens_per_sample = 1,
                          .candidate = i,
                          .ran_dense = !follows,
                          .samples = {},
                          .reps_fraction = {}});
    }
    // Modes that cannot decode stay out of it alone.
    n_predict_.assign(caches_.size(), n_predict);
    warm_prefills_.resize(caches_.size());
    warm_decodes_.resize(caches_.size());
    for (size_t i = 0; n_predict > 0 && i < caches_.size(); ++i)
      if (caches_[i].needs_whole_sequence()) {
        n_predict_[i] = 0;
        leave_out("tg", result.candidates[i].label + " looks at later tokens and cannot decode");
      }
  }

  // One round of a candidate; samples of the warm-up round are dropped.
  void run(size_t candidate, bool warm_up) {
    KvCache& cache = caches_[candidate];
    cache.truncate(0);
    cache.set_delta_factor(1);  // an audit may have changed it
    cache.wait_to_time(on_device() && warm_up);
    const BenchSample prefill = sample(cache, 1, [&] {
      const bool whole = !model_.spec().causal || cache.needs_whole_sequence();
      forward_in_passes(model_, tokens_.first(static_cast<size_t>(n_tokens_)), cache,
                        whole ? n_tokens_ : kPassTokens, [](int64_t, const ConstTensor&) {});
    });
    if (warm_up) {
      prefills_[candidate].reps_fraction = decodes_[candidate].reps_fraction =
          reps_fraction_of(cache, model_.spec().n_layers);
      prefills_[candidate].pairs_dropped_fraction = pairs_dropped_of(cache, model_.spec().n_layers);
      warm_prefills_[candidate] = prefill;
    } else {
      prefills_[candidate].samples.push_back(with_parts(prefill, warm_prefills_[candidate]));
    }
    const LinearWork before = linear_work(cache, model_.spec());
    prefills_[candidate].fast_path_fraction = before.fast_path_fraction();
    const int64_t n_predict = n_predict_[candidate];
    if (n_predict == 0) return;
    std::optional<AuditedSteps> audit;
    if (const AuditOptions& wanted = result_.candidates[candidate].audit; wanted.every > 0)
      audit.emplace(model_, wanted).follow(tokens_.first(static_cast<size_t>(n_tokens_)), cache);
    const BenchSample decode = sample(cache, n_predict, [&] {
      for (int64_t i = 0; i < n_predict; ++i) {
        const auto so_far = tokens_.first(static_cast<size_t>(n_tokens_ + i + 1));
        if (audit)
          audit->step(so_far, cache, scores_.view());
        else
          model_.logits(model_.forward(so_far.last(1), cache), scores_.view());
      }
    });
    if (audit) decodes_[candidate].audit = audit->records();
    if (warm_up && !on_device()) check_finite(scores_.view().data<float>()[0]);
    if (warm_up)
      warm_decodes_[candidate] = decode;
    else
      decodes_[candidate].samples.push_back(with_parts(decode, warm_decodes_[candidate]));
    if (before.groups().empty()) return;
    const LinearWork after = linear_work(cache, model_.spec());
    decodes_[candidate].fast_path_fraction = fast_between(before, after);
    decodes_[candidate].weight_bytes_fraction =
        weights_between(before, after, n_tokens_, n_predict);
  }

  bool disturbed() const {
    const auto is = [](const BenchCase& found) { return found.disturbed(); };
    return std::any_of(prefills_.begin(), prefills_.end(), is) ||
           std::any_of(decodes_.begin(), decodes_.end(), is);
  }
  void forget_samples() {
    for (std::vector<BenchCase>* cases : {&prefills_, &decodes_})
      for (BenchCase& found : *cases) found.samples.clear();
  }

  void finish() {
    for (std::vector<BenchCase>* cases : {&prefills_, &decodes_})
      for (BenchCase& found : *cases) {
        if (found.samples.empty()) continue;
        found.speedup = ratio_of(cases->front().totals_ms(), found.totals_ms());
        result_.cases.push_back(found);
      }
  }

 private:
  // Tokens decoded after the length; 0 where that cannot be.
  int64_t decode_tokens() {
    const int64_t n = result_.options.n_predict;
    if (n == 0) return 0;
    const auto n_text = static_cast<int64_t>(tokens_.size());
    if (!model_.spec().causal)
      leave_out("tg", model_.spec().family + " is an encoder and does not decode");
    else if (!model_.has_head())
      leave_out("tg", "the checkpoint has no output head");
    else if (n_tokens_ + n > model_.context())
      leave_out(fmt::format("tg@{}", n_tokens_),
                fmt::format("{} more tokens do not fit the context of {}", n, model_.context()));
    else if (n_tokens_ + n > n_text)
      leave_out(fmt::format("tg@{}", n_tokens_),
                fmt::format("the text has {} tokens, {} more are not there", n_text, n));
    else
      return n;
    return 0;
  }

  void leave_out(const std::string& what, const std::string& why) {
    const std::string line = what + " left out: " + why;
    std::vector<std::string>& lines = result_.left_out;
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }

  bool on_device() const { return model_.backend().device() != Device::kCpu; }

  // A device works while the host goes on: its parts are timed in the round that warms up, which
  // waits after each, and a sample has the same shares of them.
  BenchSample with_parts(const BenchSample& sample, const BenchSample& warm) const {
    if (!on_device()) return sample;
    const double scale = sample.total / warm.total;
    return {sample.total, scale * warm.select, scale * warm.attend, scale * warm.linear};
  }

  // Times work that counts n times.
  BenchSample sample(KvCache& cache, int64_t n, const std::function<void()>& work) {
    cache.reset_times();
    model_.backend().wait();
    const double total = time_ms([&] {
      work();
      model_.backend().wait();
    });
    const LayerTimes times = cache.all_times();
    const auto share = [n](double ms) { return ms / static_cast<double>(n); };
    return {share(total), share(1e3 * times.select), share(1e3 * times.attend),
            share(1e3 * times.all_linear())};
  }

  Model& model_;
  std::span<const int32_t> tokens_;
  int64_t n_tokens_;
  BenchResult& result_;
  Buffer scores_;
  std::vector<KvCache> caches_;                // per candidate, as all that follow
  std::vector<BenchCase> prefills_, decodes_;  // those without samples were left out
  std::vector<BenchSample> warm_prefills_, warm_decodes_;
  std::vector<int64_t> n_predict_;
};

}  // namespace

std::vector<double> BenchCase::totals_ms() const {
  std::vector<double> totals;
  for (const BenchSample& sample : samples) totals.push_back(sample.total);
  return totals;
}

BenchSample BenchCase::middle() const {
  SLUICE_CHECK(!samples.empty());
  std::vector<BenchSample> sorted = samples;
  std::sort(sorted.begin(), sorted.end(),
            [](const BenchSample& a, const BenchSample& b) { return a.total < b.total; });
  const BenchSample &low = sorted[(sorted.size() - 1) / 2], &high = sorted[sorted.size() / 2];
  return {(low.total + high.total) / 2, (low.select + high.select) / 2,
          (low.attend + high.attend) / 2, (low.linear + high.linear) / 2};
}

double BenchCase::tokens_per_s() const {
  return 1e3 * static_cast<double>(tokens_per_sample) / middle().total;
}

std::string BenchResult::label_of(const BenchCase& found) const {
  return candidates[found.candidate].label + (found.ran_dense ? " (dense)" : "");
}

int64_t bench_tokens(const BenchOptions& options) {
  SLUICE_CHECK(!options.lengths.empty());
  return *std::max_element(options.lengths.begin(), options.lengths.end()) + options.n_predict;
}

void check_lengths(const std::vector<int64_t>& lengths, int64_t context, int64_t n_tokens) {
  for (const int64_t length : lengths) {
    SLUICE_CHECK(length > 0);
    if (length > context)
      throw Error(fmt::format("{} tokens are more than the model's context of {}", length, context),
                  fmt::format("--context {} or less", context));
    if (length > n_tokens)
      throw Error(fmt::format("the text has {} tokens, {} are asked for", n_tokens, length),
                  "a longer text, or a smaller --context");
  }
}

std::vector<int32_t> random_tokens(const ModelSpec& spec, int64_t n) {
  std::mt19937 random(0);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(spec.vocab)));
  return tokens;
}

BenchResult bench_model(Model& model, std::span<const int32_t> tokens,
                        std::vector<BenchCandidate> accelerated, const BenchOptions& options,
                        const std::function<void(double, const std::string&)>& progress) {
  SLUICE_CHECK(options.n_predict >= 0 && options.repeat > 0);
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  check_lengths(options.lengths, model.context(), n_tokens);
  BenchResult result{
      .options = options, .n_tokens = n_tokens, .candidates = {}, .cases = {}, .left_out = {}};
  result.candidates.push_back({.settings = {{"attention", "dense"}, {"linear", "dense"}}});
  for (BenchCandidate& candidate : accelerated) result.candidates.push_back(std::move(candidate));
  // Tokens stand for time, which is near enough for a bar.
  const auto weight = [&](int64_t length) {
    return static_cast<double>(length + options.n_predict) * (options.repeat + 1) *
           static_cast<double>(result.candidates.size());
  };
  double all = 0, done = 0;
  for (const int64_t length : options.lengths) all += weight(length);
  for (const int64_t length : options.lengths) {
    LengthBench bench(model, tokens, length, result);
    const auto run_rounds = [&] {
      run_interleaved(options.repeat, result.candidates.size(), [&](size_t candidate, int round) {
        if (progress)
          progress(done / all,
                   fmt::format("{} tokens, {}", length, result.candidates[candidate].label));
        bench.run(candidate, round < 0);
        done += static_cast<double>(length + options.n_predict);
      });
    };
    run_rounds();
    if (bench.disturbed()) {
      bench.forget_samples();
      all += weight(length);
      run_rounds();
    }
    bench.finish();
  }
  return result;
}

namespace {

// What a case's candidate did there.
nlohmann::json describe_candidate(const BenchResult& result, const BenchCase& found) {
  const BenchCandidate& candidate = result.candidates[found.candidate];
  nlohmann::json settings = candidate.settings;
  if (candidate.follows) settings["ran"] = found.ran_dense ? "dense" : "plan";
  if (found.ran_dense) settings["attention"] = settings["linear"] = "dense";
  return {{"mode", found.ran_dense ? "dense" : candidate.mode},
          {"linear", found.ran_dense ? "dense" : candidate.linear},
          {"label", result.label_of(found)},
          {"settings", std::move(settings)}};
}

}  // namespace

nlohmann::json bench_results(const ResultsOrigin& origin, const BenchResult& result) {
  nlohmann::json results = results_of("bench", origin, result.n_tokens);
  if (origin.text.empty()) results["text"] = nullptr;
  results["settings"] = {{"context", result.options.lengths},
                         {"predict", result.options.n_predict},
                         {"repeat", result.options.repeat}};
  results["memory"] = {{"weight_bytes", origin.model.weight_bytes()},
                       {"peak_bytes", peak_memory_bytes()}};
  results["cases"] = nlohmann::json::array();
  for (const BenchCase& found : result.cases) {
    const BenchSample middle = found.middle();
    results["cases"].push_back({{"name", found.name},
                                {"n_tokens", found.n_tokens},
                                {"samples_ms", found.totals_ms()},
                                {"median_ms", middle.total},
                                {"tokens_per_s", found.tokens_per_s()},
                                {"spread", spread_of(found.totals_ms())},
                                {"disturbed", found.disturbed()},
                                {"speedup_vs_dense", found.speedup.middle},
                                {"speedup_low", found.speedup.low},
                                {"speedup_high", found.speedup.high},
                                {"parts_ms",
                                 {{"select", middle.select},
                                  {"attend", middle.attend},
                                  {"linear", middle.linear},
                                  {"rest", middle.rest()}}},
                                {"n_reps_fraction", or_null(found.reps_fraction)},
                                {"pairs_dropped_fraction", or_null(found.pairs_dropped_fraction)},
                                {"fast_path_fraction", or_null(found.fast_path_fraction)},
                                {"weight_bytes_fraction", or_null(found.weight_bytes_fraction)}});
    if (!found.audit.empty())
      results["cases"].back()["audit"] =
          describe_records(found.audit, result.candidates[found.candidate].audit);
    results["cases"].back().update(describe_candidate(result, found));
  }
  return results;
}

}  // namespace sluice::impl
