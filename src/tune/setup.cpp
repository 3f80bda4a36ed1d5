#include "tune/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/threads.h"
#include "eval/results.h"
#include "sluice/version.h"

namespace sluice::impl {

void check_tunable(const ModelSpec& spec, PlanObjective objective) {
  if (!spec.causal && objective != PlanObjective::kPrefill && objective != PlanObjective::kReads)
    throw Error(fmt::format("{} is an encoder: it neither decodes nor keeps a cache, objective {} "
                            "has no meaning",
                            spec.family, objective_name(objective)),
                "--objective prefill or reads");
}

int64_t tune_context(int64_t wanted, int64_t most) {
  const int64_t context = wanted > 0 ? wanted : std::min<int64_t>(1024, most);
  if (context > most)
    throw Error(
        fmt::format("the model reads at most {} tokens, --context {} is more", most, context),
        fmt::format("--context {} or less", most));
  return context;
}

Contract contract_of(const PlanContract& wanted) {
  Contract contract;
  if (wanted.max_kl) contract = Contract::of_kl(*wanted.max_kl);
  contract.max_kl_p99 = wanted.max_kl_p99.value_or(contract.max_kl_p99);
  contract.max_kl_p999 = wanted.max_kl_p999.value_or(contract.max_kl_p999);
  contract.max_ppl_ratio = wanted.max_ppl_ratio.value_or(contract.max_ppl_ratio);
  return contract;
}

void set_head_defaults(HeadOptions& heads, bool windows_given, int64_t context,
                       const ModelSpec& spec) {
  if (!spec.causal) {
    if (windows_given)
      throw Error(spec.family + " is an encoder and has no window", "leave --window out");
    heads.window_alone = false;
    // One layer's mode for all lengths; `keys` of an encoder reads no window and block.
    heads.windows = {heads.refines() ? 0 : int64_t{128}};
  } else if (!windows_given) {
    heads.windows = heads.refines() ? std::vector<int64_t>{default_refine_window(context)}
                                    : std::vector<int64_t>{128, 64, 32};
  }
  heads.refine = with_defaults(heads.refine, /*window=*/0, context);
}

nlohmann::json measurements_key(const TuneSources& sources, const TuneOptions& options,
                                const Backend& backend) {
  return {{"model", sources.model_sha256},
          {"text", sha256_of({sources.text})},
          {"separator", sources.separator},
          {"dtype", dtype_name(backend.compute_dtype())},
          {"context", options.split.context},
          {"n_calibration", options.split.n_calibration},
          {"n_held_out", options.split.n_held_out},
          {"needles", options.needles},
          {"seed", options.split.seed},
          {"bases", sources.bases.empty() ? "" : sha256_of({sources.bases})},
          {"version", SLUICE_VERSION}};
}

std::string machine_text(const Backend& backend) {
  return fmt::format("{} on {}, {} threads", backend.name(), device_text(backend), threads());
}

}  // namespace sluice::impl
