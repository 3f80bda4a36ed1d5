#include "sluice/tune.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "api/check.h"
#include "api/state.h"
#include "eval/results.h"
#include "tune/setup.h"
#include "tune/tune.h"
#include "tune/tune_results.h"

namespace sluice {
namespace {

using impl::api::with_files;

impl::PlanObjective objective_of(Objective objective) {
  switch (objective) {
    case Objective::kPrefill:
      return impl::PlanObjective::kPrefill;
    case Objective::kDecode:
      return impl::PlanObjective::kDecode;
    case Objective::kMemory:
      return impl::PlanObjective::kMemory;
    case Objective::kReads:
      return impl::PlanObjective::kReads;
    case Objective::kDecodeReads:
      return impl::PlanObjective::kDecodeReads;
  }
  throw Error("the objective is none", "Objective::kPrefill or another");
}

using impl::api::check;

// As the program checks its flags.
void check_options(const TuneOptions& options) {
  check(options.max_kl || options.max_ppl_ratio, "tune needs the loss that is accepted",
        "max_kl or max_ppl_ratio");
  check(options.max_kl.value_or(0) >= 0 && std::isfinite(options.max_kl.value_or(0)),
        "max_kl is out of range", "0 nats or more");
  check(options.max_ppl_ratio.value_or(1) >= 1 && std::isfinite(options.max_ppl_ratio.value_or(1)),
        "max_ppl_ratio is out of range", "1 or more");
  check(options.max_kl_p99.value_or(0) >= 0 && options.max_kl_p999.value_or(0) >= 0,
        "max_kl_p99 or max_kl_p999 is out of range", "0 nats or more, or infinity");
  check(options.context >= 0, "context is less than none", "0 for 1024 tokens");
  check(options.n_windows >= 1, "n_windows is less than one", "1 or more");
  check(options.n_held_out >= 2, "n_held_out is less than two", "2 or more");
  const bool refines = options.mode == AttentionMode::kRefine;
  check(refines || options.mode == AttentionMode::kKeys, "tune knows no such mode of attention",
        "AttentionMode::kRefine or kKeys");
  const bool memory = options.objective == Objective::kMemory;
  check(!memory || !refines, "refined attention keeps all keys and saves no memory",
        "AttentionMode::kKeys, or another objective");
  const bool reads =
      options.objective == Objective::kReads || options.objective == Objective::kDecodeReads;
  check(!reads || refines, "objectives of reads are those of refined attention",
        "AttentionMode::kRefine, or another objective");
}

impl::TuneOptions wanted_of(const TuneOptions& options, int64_t context,
                            const impl::ModelSpec& spec) {
  impl::TuneOptions wanted;
  wanted.contract = impl::contract_of({.max_kl = options.max_kl,
                                       .max_kl_p99 = options.max_kl_p99,
                                       .max_kl_p999 = options.max_kl_p999,
                                       .max_ppl_ratio = options.max_ppl_ratio});
  wanted.objective = objective_of(options.objective);
  wanted.split = {.context = context,
                  .n_calibration = options.n_windows,
                  .n_held_out = options.n_held_out,
                  .seed = options.seed};
  wanted.needles = options.needles;
  wanted.heads.mode = options.mode == AttentionMode::kRefine ? impl::AttentionMode::kRefine
                                                             : impl::AttentionMode::kKeys;
  impl::set_head_defaults(wanted.heads, /*windows_given=*/false, context, spec);
  return wanted;
}

TunedLoss loss_of(const impl::Loss& loss) {
  return {.kl = {loss.kl.mean(), loss.kl.standard_error()},
          .kl_p99 = loss.kl_values.quantile(0.99),
          .kl_p999 = loss.kl_values.quantile(0.999),
          .perplexity_ratio = {loss.ppl_ratio(), loss.ppl_ratio_stderr()},
          .n_tokens = loss.kl.count(),
          .n_documents = loss.kl.n_units(),
          .n_needles = loss.needles.n,
          .needles_dense = loss.needles.by_dense,
          .needles_plan = loss.needles.found};
}

TuneResult run(Model::State& state, const std::filesystem::path& text, const TuneOptions& options) {
  impl::check_tunable(state.model.spec(), objective_of(options.objective));
  impl::TuneOptions wanted = wanted_of(
      options, impl::tune_context(options.context, state.info.context), state.model.spec());
  impl::TextStream stream =
      with_files([&] { return impl::TextStream(text, state.tokenizer(), options.separator); });
  wanted.machine = impl::machine_text(state.model.backend());
  impl::Measurements measurements = with_files([&] {
    return impl::Measurements(
        options.measurements,
        impl::measurements_key(
            {.model_sha256 = state.sha256(), .text = text, .separator = options.separator}, wanted,
            state.model.backend()));
  });
  const impl::TuneResult found = impl::tune(state.model, stream, wanted, measurements,
                                            [&](double done, const std::string& now) {
                                              if (options.progress) options.progress(done, now);
                                            });
  const impl::ResultsOrigin origin{.command_line = "sluice::tune()",
                                   .checkpoint = *state.checkpoint,
                                   .model = state.model,
                                   .text = text,
                                   .model_sha256 = state.sha256()};
  return {.plan = Access::make(std::make_shared<Plan::State>(
              Plan::State{.file = impl::tuned_plan_file(origin, wanted, found, /*bases=*/{}),
                          .path = "the tuned plan"})),
          .dense_because = found.dense_because,
          .calibration = loss_of(found.calibration),
          .held_out = loss_of(found.held_out),
          .seconds = found.seconds};
}

}  // namespace

TuneResult tune(Model& model, const std::filesystem::path& text, const TuneOptions& options) {
  check_options(options);
  Model::State& state = *Access::of(model);
  state.check_logits();
  return run(state, text, options);
}

}  // namespace sluice
