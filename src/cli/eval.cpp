// sluice eval: how well a model predicts a text.

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "eval/perplexity.h"
#include "eval/results.h"

namespace sluice::cli {
namespace {

struct EvalOptions : CommonOptions {
  std::string file;
  std::string separator = "<|endoftext|>";
  int64_t max_windows = 0;
};

void write_results(const EvalOptions& options, const Checkpoint& checkpoint, const Model& model,
                   const PerplexityResult& result) {
  nlohmann::json json = results_header("eval", model.backend());
  json["model"] = describe_model(checkpoint, model.backend());
  json["text"] = describe_text(options.file, result.loss.count());
  json["settings"] = {{"context", model.context()},
                      {"windows", result.n_windows},
                      {"attention", "dense"},
                      {"linear", "dense"}};
  json["metrics"] = {{"n_tokens", result.loss.count()},
                     {"loss", result.loss.mean()},
                     {"loss_stderr", result.loss.standard_error()},
                     {"ppl", result.perplexity()},
                     {"ppl_stderr", result.standard_error()}};
  write_json(json, options.json);
}

void run_eval(const EvalOptions& options) {
  if (!options.json.empty()) check_writable(options.json);
  const auto checkpoint = open_checkpoint(options.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  TextStream text(options.file, *tokenizer, options.separator);
  Model model = load_model(checkpoint, options);
  PerplexityResult result;
  {
    ProgressBar bar("eval", options.quiet);
    result = evaluate_perplexity(
        model, text, {.max_windows = options.max_windows}, [&](const PerplexityResult& so_far) {
          if (!options.quiet) {
            if (so_far.n_windows == 1)
              fmt::print("{:>8} {:>12} {:>12} {:>10}\n", "window", "tokens", "ppl", "±");
            fmt::print("{:>8} {:>12} {:>12.4f} {:>10.4f}\n", so_far.n_windows, so_far.loss.count(),
                       so_far.perplexity(), so_far.standard_error());
            std::fflush(stdout);
          }
          const double of_text = static_cast<double>(text.bytes_read()) /
                                 static_cast<double>(std::max<int64_t>(text.bytes_total(), 1));
          const double of_windows = static_cast<double>(so_far.n_windows) /
                                    static_cast<double>(std::max<int64_t>(options.max_windows, 1));
          bar.update(options.max_windows > 0 ? std::max(of_windows, of_text) : of_text,
                     fmt::format("ppl {:.3f}", so_far.perplexity()));
        });
  }
  fmt::print(
      "perplexity {:.4f} ± {:.4f}, loss {:.5f} ± {:.5f} nats/token, {} tokens in {} windows "
      "of {}\n",
      result.perplexity(), result.standard_error(), result.loss.mean(),
      result.loss.standard_error(), result.loss.count(), result.n_windows, model.context());
  if (!options.json.empty()) write_results(options, *checkpoint, model, result);
}

}  // namespace

Run add_eval(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "eval",
      "Perplexity of a model on a text, with its standard error.\n"
      "\n"
      "The text is cut into windows of --context tokens; each token is predicted from those\n"
      "before it in its window. Documents parted by the separator each begin with the\n"
      "tokenizer's first token. A running value is printed after every window.\n"
      "\n"
      "  sluice eval -m MODEL -f wiki.txt -c 1024 --windows 50");
  auto options = std::make_shared<EvalOptions>();
  add_common_options(*command, *options);
  command->add_option("-f,--file", options->file, "Text file to predict")->required();
  command->add_option("--windows", options->max_windows, "Stop after this many windows; 0: never")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--separator", options->separator,
                   "What parts documents in the file; empty for none")
      ->capture_default_str();
  return [options] { run_eval(*options); };
}

}  // namespace sluice::cli
