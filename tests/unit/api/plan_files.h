// Plan files for tests of the public API.

#pragma once

#include <filesystem>

#include "eval/results.h"
#include "model/checkpoint.h"
#include "plan/plan_file.h"

namespace sluice::test {

// A plan of attention in all layers alike for a checkpoint, as tune would have written it.
inline impl::PlanFile plan_file_for(const std::filesystem::path& model, impl::AttentionMode mode,
                                    int64_t context) {
  const auto checkpoint = impl::open_checkpoint(model);
  const impl::ModelSpec& spec = checkpoint->spec();
  impl::UniformAttention choice;
  choice.mode = mode;
  impl::PlanFile file;
  file.plan.attention = impl::uniform_plan(choice, {.n_layers = spec.n_layers,
                                                    .n_kv_heads = spec.n_kv_heads,
                                                    .causal = spec.causal,
                                                    .context = context});
  file.model = {.sha256 = impl::model_sha256(*checkpoint),
                .family = spec.family,
                .n_layers = spec.n_layers,
                .n_kv_heads = spec.n_kv_heads};
  file.context = context;
  file.contract = impl::PlanContract{.max_kl = 0.5, .max_kl_p99 = 5};
  file.auto_from = impl::PlanAuto{.prefill_from = 4, .decode_from = 8};
  file.measured = impl::PlanMeasured{.dtype = "f32", .device = "a processor", .threads = 2};
  return file;
}

}  // namespace sluice::test
