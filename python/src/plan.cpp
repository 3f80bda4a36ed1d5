// sluice._core.Plan.

#include "bind.h"

namespace sluice::python {
namespace {

std::optional<nb::dict> info_of(const Plan& plan) {
  const std::optional<PlanInfo> info = plan.info();
  if (!info) return {};
  nb::dict out;
  out["family"] = info->family;
  out["n_layers"] = info->n_layers;
  out["context"] = info->context;
  out["objective"] = word_of(kObjectives, info->objective);
  out["max_kl"] = info->max_kl;
  out["max_kl_p99"] = info->max_kl_p99;
  out["max_kl_p999"] = info->max_kl_p999;
  out["max_ppl_ratio"] = info->max_ppl_ratio;
  out["prefill_from"] = info->prefill_from;
  out["decode_from"] = info->decode_from;
  out["measured_on"] = text_or_none(info->measured_on);
  out["linear"] = info->linear;
  return out;
}

Plan uniform(const nb::dict& given) {
  Options options(given);
  const AttentionOptions attention = attention_options(options);
  options.finish();
  return Plan::uniform(attention);
}

}  // namespace

void bind_plan(nb::module_& core) {
  nb::class_<Plan>(core, "Plan", "What the attention of a model does.")
      .def(nb::init<>(), "Exact attention.")
      .def_static("uniform", &uniform, nb::arg("options"), "The same in all layers.")
      .def_static("load", &Plan::load, nb::arg("path"), "A file of save() or `sluice tune`.")
      .def("save", &Plan::save, nb::arg("path"), "Writes a plan of load() or tune().")
      .def_prop_ro("is_dense", &Plan::is_dense, "Whether it leaves everything exact.")
      .def_prop_ro("info", &info_of, "What a plan of load() or tune() was made for, or None.")
      .def("why_dense", &Plan::why_dense, nb::arg("n_prompt"), nb::arg("max_tokens"),
           "Why generate() would not follow the plan; empty where it would.");
}

}  // namespace sluice::python
