#include "tune/plan_speed.h"

#include <algorithm>

#include "core/error.h"
#include "tune/times.h"

namespace sluice::impl {
namespace {

// Medians of the speed-up from which a length gains, beyond noise, and is not slower.
constexpr double kFaster = 1.02, kAsFast = 0.98;

// A gain is beyond noise: no round was slower than dense, and nothing disturbed them.
bool gains(const BenchCase& found) {
  return found.speedup.middle >= kFaster && found.speedup.above_one() && !found.disturbed();
}
bool is_as_fast(const BenchCase& found) { return found.speedup.middle >= kAsFast; }

// The shortest length from which on all do.
std::optional<int64_t> faster_from(const BenchResult& bench, const std::string& kind,
                                   bool (*holds)(const BenchCase&)) {
  std::optional<int64_t> from;
  for (const BenchCase& found : bench.cases) {
    if (found.candidate == 0 || !found.name.starts_with(kind)) continue;
    if (!holds(found))
      from.reset();
    else if (!from)
      from = found.n_tokens;
  }
  return from;
}

}  // namespace

std::vector<int32_t> tokens_of(const std::vector<TuneWindow>& windows, int64_t n) {
  SLUICE_CHECK(!windows.empty());
  std::vector<int32_t> tokens;
  for (size_t i = 0; std::ssize(tokens) < n; ++i) {
    const std::span<const int32_t> window = windows[i % windows.size()].inputs();
    tokens.insert(tokens.end(), window.begin(), window.end());
  }
  tokens.resize(static_cast<size_t>(n));
  return tokens;
}

std::vector<int64_t> lengths_to_time(int64_t context, int64_t most_tokens) {
  std::vector<int64_t> lengths = {context};
  for (int64_t n = 128; n < context; n *= 2) lengths.push_back(n);
  // One with room to decode after it.
  if (const int64_t room = most_tokens - kDecodeTokens; context > room && room > kDecodeTokens)
    lengths.push_back(room);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

PlanSpeed judge_speed(BenchResult bench, PlanObjective objective) {
  const bool prefill = objective == PlanObjective::kPrefill;
  const bool decode = objective == PlanObjective::kDecode;
  PlanSpeed speed;
  speed.prefill_from = faster_from(bench, "pp", prefill ? gains : is_as_fast);
  speed.decode_from = faster_from(bench, "tg", decode ? gains : is_as_fast);
  speed.pays = !(prefill && !speed.prefill_from) && !(decode && !speed.decode_from);
  speed.bench = std::move(bench);
  return speed;
}

PlanSpeed time_plan(Model& model, const Plan& plan, const std::vector<TuneWindow>& windows,
                    const PlanSpeedOptions& options,
                    const std::function<void(double, const std::string&)>& progress) {
  const BenchOptions bench{.lengths = lengths_to_time(options.context, model.context()),
                           .n_predict = kDecodeTokens,
                           .repeat = options.rounds};
  const std::vector<int32_t> tokens =
      tokens_of(windows, std::min(bench_tokens(bench), model.context()));
  const BenchCandidate candidate{
      .label = "plan", .mode = std::string(mode_name(options.mode)), .plan = plan};
  return judge_speed(bench_model(model, tokens, {candidate}, bench, progress), options.objective);
}

}  // namespace sluice::impl
