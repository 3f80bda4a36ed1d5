// sluice demo: the whole story on the model and text that come with the program.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "cli/commands.h"
#include "cli/demo/demo_story.h"
#include "cli/options/options.h"
#include "cli/share_folder.h"
#include "cli/terminal/print.h"
#include "core/error.h"
#include "core/threads.h"
#include "eval/results.h"
#include "eval/text/text_stream.h"

namespace sluice::impl::cli {
namespace {

struct DemoFlags : CommonOptions {
  std::string file;
};

void fill_defaults(DemoFlags& flags) {
  if (flags.model.empty() || flags.file.empty()) {
    const auto folder = demo_folder();
    if (flags.model.empty()) flags.model = (folder / "gpt2-nano").string();
    if (flags.file.empty()) flags.file = (folder / "text.txt").string();
  }
  if (flags.json.empty()) flags.json = "results.json";
  if (flags.html.empty()) flags.html = "report.html";
}

std::vector<int32_t> beginning_of(const DemoFlags& flags, const Tokenizer& tokenizer) {
  TextStream text(flags.file, tokenizer, "<|endoftext|>");
  std::vector<int32_t> tokens;
  text.read(kDemoTokens, tokens);
  constexpr int64_t kEnough = 64;
  if (static_cast<int64_t>(tokens.size()) < kEnough)
    throw Error(
        fmt::format("{} has {} tokens, too few to show anything", flags.file, tokens.size()),
        "a text of some pages, 1,000 tokens or more");
  return tokens;
}

void print_opening(const DemoFlags& flags, const Checkpoint& checkpoint, const Model& model) {
  const ModelSpec& spec = checkpoint.spec();
  print("{} ({}, {} layers, d_model {}) on {}; {}, {} threads, {}\n",
        checkpoint.path.filename().string(), spec.family, spec.n_layers, spec.d_model, flags.file,
        flags.dtype, threads(), model.backend().description());
}

// What the commands of the parts need to compute as the demo did.
std::vector<std::string> computing_flags(const DemoFlags& flags) {
  const DemoFlags defaults;
  std::vector<std::string> words;
  if (flags.device != defaults.device) words.insert(words.end(), {"--device", flags.device});
  if (flags.dtype != defaults.dtype) words.insert(words.end(), {"--dtype", flags.dtype});
  if (flags.threads != defaults.threads)
    words.insert(words.end(), {"--threads", std::to_string(flags.threads)});
  return words;
}

void print_ending(const DemoFlags& flags, const std::vector<std::string>& conclusions,
                  double seconds) {
  const std::string program = typed_path(program_path()).string();
  print("\n");
  for (const std::string& conclusion : conclusions) print("{}\n", conclusion);
  print(
      "\nWritten: {1} (open it in a browser), {2} (every figure), after {3:.0f} seconds.\n"
      "\n"
      "Next, on a model of your own, a Hugging Face folder or a .gguf file:\n"
      "\n"
      "  {0} demo -m MODEL -f TEXT\n"
      "  {0} eval -m MODEL -f TEXT -c 8192 --attention refine\n"
      "  {0} tune -m MODEL -f TEXT -c 8192 --max-kl 0.01 -o plan.json\n",
      program, flags.html, flags.json, seconds);
}

void run_demo(DemoFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  fill_defaults(flags);
  check_outputs(flags, {flags.file});
  const auto checkpoint = open_checkpoint(flags.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const ModelSpec& spec = checkpoint->spec();
  std::vector<int32_t> tokens = beginning_of(flags, *tokenizer);
  flags.context = std::min(kDemoTokens, spec.max_positions);
  Model model = load_model(checkpoint, flags);
  print_opening(flags, *checkpoint, model);

  nlohmann::json results = results_of("demo",
                                      {.command_line = flags.command_line,
                                       .checkpoint = *checkpoint,
                                       .model = model,
                                       .text = flags.file},
                                      static_cast<int64_t>(tokens.size()));
  const DemoScene scene{.checkpoint = *checkpoint,
                        .tokenizer = *tokenizer,
                        .model = model,
                        .model_path = flags.model,
                        .text_path = flags.file,
                        .tokens = std::move(tokens),
                        .model_sha256 = results.at("model").at("sha256"),
                        .flags = computing_flags(flags),
                        .quiet = flags.quiet};
  nlohmann::json& parts = results["parts"] = nlohmann::json::array();
  // Files are whole after every chapter: whoever stops here has what was measured.
  const auto add = [&](nlohmann::json part) {
    parts.push_back(std::move(part));
    write_outputs(results, flags);
  };
  std::vector<std::string> conclusions;
  const auto add_measured = [&](Measured found) {
    conclusions.push_back(std::move(found.conclusion));
    add(std::move(found.results));
  };
  add(tell_representatives(scene));
  add(tell_cascade(scene));
  const bool predicts = spec.causal && model.has_head();
  if (predicts) {
    add_measured(tell_quality(scene));
    for (nlohmann::json& part : tell_generation(scene)) add(std::move(part));
  } else {
    print("\n(Chapters 3, 4 and 6, on prediction, are for models that predict a next token.)\n");
  }
  add_measured(tell_speed(scene));
  if (predicts) {
    const double tokens_per_s = parts.back().at("cases").at(0).at("tokens_per_s");
    if (auto part = tell_contract(scene, tokens_per_s)) add(std::move(*part));
  }
  print_ending(flags, conclusions,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

Run add_demo(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "demo",
      "The whole story on a small trained model and a text that come with the program: which\n"
      "tokens stand for others, how that persists from layer to layer, what it costs in quality\n"
      "and saves in time; then a plan that keeps a loss you state. Writes a page to look at and "
      "all\n"
      "figures. Needs no argument; takes a minute or two.\n"
      "\n"
      "  sluice demo\n"
      "  sluice demo -m MODEL -f TEXT --dtype bf16    the same on your own");
  auto flags = std::make_shared<DemoFlags>();
  add_common_options(*command, *flags);
  command->remove_option(command->get_option("--context"));
  command->get_option("--model")->required(false);
  command->get_option("--json")->description("Where the figures go; results.json");
  command->add_option("-f,--file", flags->file, "Text file; by default the one that comes along");
  command->get_option("--html")->description("Where the page goes; report.html");
  return [flags](const std::string& command_line) {
    flags->command_line = command_line;
    run_demo(*flags);
  };
}

}  // namespace sluice::impl::cli
