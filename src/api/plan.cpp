#include "sluice/plan.h"

#include <fmt/format.h>

#include "api/state.h"
#include "eval/plan_in_use.h"

namespace sluice {
namespace {

using impl::api::with_files;

static_assert(AttentionOptions{}.delta == impl::kDefaultDelta);

impl::AttentionMode own_mode(AttentionMode mode) {
  switch (mode) {
    case AttentionMode::kDense:
      return impl::AttentionMode::kDense;
    case AttentionMode::kRefine:
      return impl::AttentionMode::kRefine;
    case AttentionMode::kKeys:
      return impl::AttentionMode::kKeys;
    case AttentionMode::kCopy:
      return impl::AttentionMode::kCopy;
  }
  throw Error("the mode of attention is none", "AttentionMode::kRefine, kKeys, kCopy or kDense");
}

Objective objective_of(impl::PlanObjective objective) {
  switch (objective) {
    case impl::PlanObjective::kPrefill:
      return Objective::kPrefill;
    case impl::PlanObjective::kDecode:
      return Objective::kDecode;
    case impl::PlanObjective::kMemory:
      return Objective::kMemory;
    case impl::PlanObjective::kReads:
      return Objective::kReads;
    case impl::PlanObjective::kDecodeReads:
      break;
  }
  return Objective::kDecodeReads;
}

void check_option(bool ok, const char* name, const char* range) {
  if (!ok) throw Error(fmt::format("{} of attention is out of range", name), range);
}

}  // namespace

namespace impl::api {

UniformAttention uniform_of(const AttentionOptions& options) {
  check_option(options.delta >= 0, "delta", "0 or more, or infinity");
  check_option(options.tau >= 0 && options.tau < 1, "tau", "0 to below 1");
  check_option(options.window.value_or(0) >= 0, "window", "0 tokens or more");
  check_option(options.sinks.value_or(0) >= 0, "sinks", "0 tokens or more");
  check_option(options.from_layer >= 0, "from_layer", "0 or more");
  UniformAttention choice;
  choice.mode = own_mode(options.mode);
  choice.delta = options.delta;
  choice.refine.tile = options.strict ? 1 : 0;
  choice.tau = options.tau;
  choice.tau_auto = options.tau_auto && options.mode == sluice::AttentionMode::kKeys;
  choice.window = options.window;
  choice.sinks = options.sinks;
  choice.from_layer = options.from_layer;
  return choice;
}

}  // namespace impl::api

Plan::Plan() = default;
Plan::Plan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
Plan::Plan(const Plan&) = default;
Plan& Plan::operator=(const Plan&) = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

Plan Plan::uniform(const AttentionOptions& options) {
  const impl::UniformAttention choice = impl::api::uniform_of(options);
  if (choice.mode == impl::AttentionMode::kDense) return {};
  return Plan(std::make_shared<State>(State{.uniform = choice}));
}

Plan Plan::load(const std::filesystem::path& path) {
  return with_files([&] {
    return Plan(std::make_shared<State>(
        State{.file = impl::read_plan_file(path), .path = std::filesystem::absolute(path)}));
  });
}

void Plan::save(const std::filesystem::path& path) const {
  if (state_ == nullptr || !state_->file)
    throw Error("a plan of options has no file: it is not made for one model",
                "keep the options, or save a plan of tune()");
  with_files([&] {
    impl::PlanFile file = *state_->file;
    if (file.bases)
      file.bases->path = impl::bases_seen_from(impl::bases_path(*file.bases, state_->path), path);
    impl::write_plan_file(file, path);
  });
}

bool Plan::is_dense() const {
  return state_ == nullptr || (state_->file && state_->file->plan.attention.all_exact() &&
                               state_->file->plan.linear.all_dense());
}

std::optional<PlanInfo> Plan::info() const {
  if (state_ == nullptr || !state_->file) return {};
  const impl::PlanFile& file = *state_->file;
  PlanInfo info{.family = file.model.family,
                .n_layers = file.model.n_layers,
                .context = file.context,
                .objective = objective_of(file.objective),
                .max_kl = {},
                .max_kl_p99 = {},
                .max_kl_p999 = {},
                .max_ppl_ratio = {},
                .prefill_from = {},
                .decode_from = {},
                .measured_on = {},
                .linear = !file.plan.linear.all_dense()};
  if (file.contract) {
    info.max_kl = file.contract->max_kl;
    info.max_kl_p99 = file.contract->max_kl_p99;
    info.max_kl_p999 = file.contract->max_kl_p999;
    info.max_ppl_ratio = file.contract->max_ppl_ratio;
  }
  if (file.auto_from) {
    info.prefill_from = file.auto_from->prefill_from;
    info.decode_from = file.auto_from->decode_from;
  }
  if (file.measured)
    info.measured_on = fmt::format("{}, {}, {} threads", file.measured->dtype,
                                   file.measured->device, file.measured->threads);
  return info;
}

std::string Plan::why_dense(int64_t n_prompt, int64_t max_tokens) const {
  if (state_ == nullptr) return "is dense";
  return state_->file ? impl::why_dense(*state_->file, n_prompt, max_tokens) : "";
}

}  // namespace sluice
