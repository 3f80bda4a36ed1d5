#include "sluice/analyze.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/check.h"
#include "api/state.h"
#include "eval/analyze/analyze.h"
#include "eval/analyze/analyze_results.h"
#include "eval/analyze/paper_tables.h"

namespace sluice {
namespace {

using impl::api::check;

int64_t context_of(const AnalyzeOptions& options, const Model::State& state) {
  check(options.context >= 0, "context is less than none", "0 for 512 tokens");
  if (options.context > state.info.context)
    throw Error(fmt::format("windows of {} tokens do not fit a context of {}", options.context,
                            state.info.context),
                "shorter windows, or a model loaded with more context");
  return options.context > 0 ? options.context : std::min(impl::kPaperTokens, state.info.context);
}

// The defaults of the program's flags.
impl::AnalyzeOptions wanted_of(const AnalyzeOptions& options, const impl::ModelSpec& spec) {
  check(!options.taus.empty(), "there is no tau", "one or more");
  for (const double tau : options.taus)
    check(tau >= 0 && tau < 1, "tau is out of range", "0 to below 1");
  check(options.max_windows >= 1, "max_windows is less than one", "1 or more");
  impl::AnalyzeOptions wanted;
  wanted.taus = options.taus;
  wanted.rules = {impl::SelectRule::kCascadePaper, impl::SelectRule::kCascadeCausal,
                  impl::SelectRule::kCascadeCover};
  const impl::LayerPlan settings = impl::rule_settings(wanted.rules.front(), {}, {}, spec);
  wanted.spaces = {impl::row_space_of(impl::space_name(settings.space)).value()};
  wanted.sinks = settings.sinks;
  wanted.outlier_ratio = settings.outlier_ratio;
  wanted.first_deep_layer = impl::default_deep_layer(spec);
  wanted.n_windows = options.max_windows;
  wanted.want_map = true;
  return wanted;
}

}  // namespace

std::string analyze(Model& model, const std::filesystem::path& text,
                    const AnalyzeOptions& options) {
  Model::State& state = *Access::of(model);
  const int64_t context = context_of(options, state);
  const impl::AnalyzeOptions wanted = wanted_of(options, state.model.spec());
  const impl::Tokenizer& tokenizer = state.tokenizer();
  impl::TextStream stream =
      impl::api::with_files([&] { return impl::TextStream(text, tokenizer, options.separator); });
  const impl::AnalyzeResult found =
      impl::analyze(state.model, impl::projection_norms(*state.checkpoint), stream, context, wanted,
                    [&](double done) {
                      if (options.progress) options.progress(done);
                    });
  return impl::results_text(impl::analyze_results(
      {.command_line = "sluice::analyze()",
       .checkpoint = *state.checkpoint,
       .model = state.model,
       .text = text,
       .model_sha256 = state.sha256()},
      {.options = wanted, .contexts = {context}, .result = found, .tokenizer = tokenizer}));
}

}  // namespace sluice
