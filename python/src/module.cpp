// The module itself: exceptions, threads, and what its parts share.

#include "bind.h"

namespace sluice::python {
namespace {

// The class is Python's, sluice._errors.Error, so that Python code can raise it too.
void raise_error(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    nb::object type = nb::module_::import_("sluice._errors").attr("Error");
    const nb::object raised = type(error.what(), error.hint());
    PyErr_SetObject(type.ptr(), raised.ptr());
  }
}

}  // namespace

void Options::finish() const {
  for (const auto& [name, value] : rest_)
    throw nb::type_error(
        ("there is no option '" + nb::cast<std::string>(nb::str(name)) + "' here").c_str());
}

AttentionOptions attention_options(Options& options) {
  AttentionOptions out;
  options.take_word<AttentionMode>("mode", kModes, out.mode);
  options.take("delta", out.delta);
  options.take("strict", out.strict);
  options.take("tau", out.tau);
  options.take("tau_auto", out.tau_auto);
  options.take("window", out.window);
  options.take("sinks", out.sinks);
  options.take("from_layer", out.from_layer);
  return out;
}

void check_signals() {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

nb::dict dict_of(const Measured& measured) {
  nb::dict out;
  out["value"] = measured.value;
  out["standard_error"] = measured.standard_error;
  return out;
}

nb::object text_or_none(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.data(), text.size()));
}

}  // namespace sluice::python

NB_MODULE(_core, core) {
  namespace nb = nanobind;
  using namespace sluice::python;
  core.doc() = "The extension module of Sluice. Use the package sluice.";
  nb::register_exception_translator(raise_error);
  core.def("version", &sluice::version, "The version of the library.");
  core.def("set_threads", &sluice::set_threads, nb::arg("count"),
           "Threads of every call from this thread; 0: one to each processor.");
  core.def("threads", &sluice::threads, "Their number.");
  bind_plan(core);
  bind_model(core);
  bind_generate(core);
  bind_evaluate(core);
  bind_attention(core);
}
