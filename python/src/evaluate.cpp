// sluice._core.evaluate, analyze, tune and report_page.

#include "bind.h"

namespace sluice::python {
namespace {

// Calls progress(...) where there is one, and runs handlers of signals.
template <typename... Args>
void report_progress(const nb::object& progress, const Args&... args) {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  if (!progress.is_none()) progress(args...);
}

nb::dict dict_of_loss(const PlanLoss& loss) {
  nb::dict out;
  out["perplexity"] = dict_of(loss.perplexity);
  out["perplexity_ratio"] = dict_of(loss.perplexity_ratio);
  out["kl"] = dict_of(loss.kl);
  out["kl_p99"] = loss.kl_p99;
  out["top1_agreement"] = dict_of(loss.top1_agreement);
  out["keys_read"] = loss.keys_read;
  out["cache_bytes_share"] = loss.cache_bytes_share;
  return out;
}

nb::dict evaluate_text(Model& model, const std::filesystem::path& text,
                       const std::vector<Plan>& plans, const nb::dict& given) {
  Options options(given);
  EvaluateOptions wanted;
  nb::object progress = nb::none();
  options.take("max_windows", wanted.max_windows);
  options.take("separator", wanted.separator);
  options.take("progress", progress);
  options.finish();
  wanted.progress = [&](int64_t n_windows) { report_progress(progress, n_windows); };
  wanted.results = true;
  Evaluation found;
  {
    const nb::gil_scoped_release released;
    found = evaluate(model, text, plans, wanted);
  }
  nb::dict out;
  out["perplexity"] = dict_of(found.perplexity);
  out["loss"] = dict_of(found.loss);
  out["n_tokens"] = found.n_tokens;
  out["n_windows"] = found.n_windows;
  nb::list losses;
  for (const PlanLoss& loss : found.plans) losses.append(dict_of_loss(loss));
  out["plans"] = losses;
  out["results"] = found.results;
  return out;
}

std::string analyze_text(Model& model, const std::filesystem::path& text, const nb::dict& given) {
  Options options(given);
  AnalyzeOptions wanted;
  nb::object progress = nb::none();
  options.take("taus", wanted.taus);
  options.take("context", wanted.context);
  options.take("max_windows", wanted.max_windows);
  options.take("separator", wanted.separator);
  options.take("progress", progress);
  options.finish();
  wanted.progress = [&](double done) { report_progress(progress, done); };
  const nb::gil_scoped_release released;
  return analyze(model, text, wanted);
}

nb::dict dict_of_tuned(const TunedLoss& loss) {
  nb::dict out;
  out["kl"] = dict_of(loss.kl);
  out["kl_p99"] = loss.kl_p99;
  out["kl_p999"] = loss.kl_p999;
  out["perplexity_ratio"] = dict_of(loss.perplexity_ratio);
  out["n_tokens"] = loss.n_tokens;
  out["n_documents"] = loss.n_documents;
  out["n_needles"] = loss.n_needles;
  out["needles_dense"] = loss.needles_dense;
  out["needles_plan"] = loss.needles_plan;
  return out;
}

TuneOptions tune_options(Options& options) {
  TuneOptions out;
  options.take("max_kl", out.max_kl);
  options.take("max_ppl_ratio", out.max_ppl_ratio);
  options.take("max_kl_p99", out.max_kl_p99);
  options.take("max_kl_p999", out.max_kl_p999);
  options.take_word<Objective>("objective", kObjectives, out.objective);
  options.take_word<AttentionMode>("mode", kModes, out.mode);
  options.take("context", out.context);
  options.take("n_windows", out.n_windows);
  options.take("n_held_out", out.n_held_out);
  options.take("needles", out.needles);
  options.take("seed", out.seed);
  options.take("separator", out.separator);
  options.take("measurements", out.measurements);
  return out;
}

nb::dict tune_text(Model& model, const std::filesystem::path& text, const nb::dict& given) {
  Options options(given);
  TuneOptions wanted = tune_options(options);
  nb::object progress = nb::none();
  options.take("progress", progress);
  options.finish();
  wanted.progress = [&](double done, std::string_view now) {
    report_progress(progress, done, std::string(now));
  };
  TuneResult found;
  {
    const nb::gil_scoped_release released;
    found = tune(model, text, wanted);
  }
  nb::dict out;
  out["plan"] = found.plan;
  out["dense_because"] = text_or_none(found.dense_because);
  out["calibration"] = dict_of_tuned(found.calibration);
  out["held_out"] = dict_of_tuned(found.held_out);
  out["seconds"] = found.seconds;
  return out;
}

}  // namespace

void bind_evaluate(nb::module_& core) {
  core.def("evaluate", &evaluate_text, nb::arg("model"), nb::arg("text"), nb::arg("plans"),
           nb::arg("options"));
  core.def("analyze", &analyze_text, nb::arg("model"), nb::arg("text"), nb::arg("options"));
  core.def(
      "report_page", [](const std::vector<std::string>& results) { return report_page(results); },
      nb::arg("results"));
  core.def("tune", &tune_text, nb::arg("model"), nb::arg("text"), nb::arg("options"));
}

}  // namespace sluice::python
