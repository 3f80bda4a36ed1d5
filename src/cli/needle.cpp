// sluice needle: whether facts far back in a long text are found.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench_output.h"
#include "cli/commands.h"
#include "cli/needle_output.h"
#include "cli/options/attention_options.h"
#include "cli/options/baseline_options.h"
#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "core/error.h"
#include "eval/needle/needle_results.h"
#include "eval/text/text_stream.h"

namespace sluice::impl::cli {
namespace {

constexpr int64_t kNeedleTokens = 4096;
constexpr size_t kMostShown = 40;  // cases, each in a row of its own; results.json has all

struct NeedleFlags : CommonOptions {
  std::string file;
  std::string separator = "<|endoftext|>";
  NeedleGrid grid;
  std::vector<std::string> tasks;
  std::string plan;
  AttentionFlags attention;
  LinearFlags linear;
};

std::vector<int32_t> tokens_of(const NeedleFlags& flags, const Tokenizer& tokenizer) {
  TextStream text(flags.file, tokenizer, flags.separator);
  const NeedleGrid& grid = flags.grid;
  std::vector<int32_t> tokens;
  text.read(
      *std::max_element(grid.contexts.begin(), grid.contexts.end()) * grid.n_depths * grid.n_cases,
      tokens);
  return tokens;
}

void run_needle(NeedleFlags& flags) {
  const std::vector<UniformAttention> attention = attention_choices(flags.attention);
  check_baseline_device(attention, flags.device);
  const std::vector<UniformLinear> linear = linear_choices(flags.linear, flags.attention.joint);
  check_outputs(flags, {flags.file, flags.linear.bases, flags.plan});
  if (flags.wants_results()) check_read_again(flags.file);
  const auto checkpoint = open_checkpoint(flags.model);
  const ModelSpec& spec = checkpoint->spec();
  if (!spec.causal)
    throw Error(spec.family + " is an encoder and does not answer questions",
                "needle needs a causal model such as GPT-2 or Llama");
  const Acceleration acceleration = read_acceleration(
      {.plan = flags.plan, .attention = attention, .linear = linear, .linear_flags = flags.linear},
      *checkpoint, flags.file);
  if (!flags.tasks.empty()) flags.grid.tasks.clear();
  for (const std::string& task : distinct(flags.tasks)) flags.grid.tasks.push_back(*task_of(task));
  std::vector<int64_t>& contexts = flags.grid.contexts;
  contexts = distinct(contexts);
  if (contexts.empty()) contexts = {std::min(kNeedleTokens, spec.max_positions)};
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const std::vector<int32_t> text = tokens_of(flags, *tokenizer);
  check_lengths(contexts, spec.max_positions, std::ssize(text));
  std::vector<NeedleCase> cases = make_needle_cases(*tokenizer, text, flags.grid);
  flags.context = *std::max_element(contexts.begin(), contexts.end());
  Model model = load_model(checkpoint, flags);
  const std::vector<Plan> plans = prepared_plans(model, acceleration);
  const NeedleLabels labels = choice_labels(acceleration.choices);
  {
    ProgressBar bar("needle", flags.quiet);
    find_needles(model, plans, cases, [&](double done, std::span<const NeedleCase> so_far) {
      bar.update(done, fmt::format("{} of {} cases", so_far.size(), cases.size()));
    });
  }
  warn_of_same_text(acceleration.bases);
  note_other_use(acceleration, model, model.context());
  if (cases.size() <= kMostShown) print("{}\n", needle_cases_table(cases, labels).markdown());
  print("{}\n{}", needle_accuracy_table(cases, labels, flags.grid).markdown(),
        needle_totals(cases, labels));
  if (flags.wants_results())
    write_outputs(needle_results({.command_line = flags.command_line,
                                  .checkpoint = *checkpoint,
                                  .model = model,
                                  .text = flags.file,
                                  .model_sha256 = acceleration.model_sha256,
                                  .bases = acceleration.bases ? &*acceleration.bases : nullptr},
                                 {.grid = flags.grid,
                                  .choices = acceleration.choices,
                                  .labels = labels,
                                  .cases = cases,
                                  .n_text_tokens = std::ssize(text)}),
                  flags);
}

}  // namespace

Run add_needle(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "needle",
      "Whether facts far back in a long text are found: a number, or what else --task says, is\n"
      "hidden in the text at several depths, and a question behind the text asks for it. The\n"
      "dense model and every choice of --attention, --linear or --plan read the same prompts in\n"
      "the same run.\n"
      "\n"
      "A prompt is read in passes, its answer token by token. It is found where each token of the\n"
      "answer is the likeliest; log p is that of the whole answer. A mean over many tokens, as\n"
      "eval has it, hardly shows a needle that is lost.\n"
      "\n"
      "  sluice needle -m MODEL -f wiki.txt -c 2048,4096,8192\n"
      "  sluice needle -m MODEL -f wiki.txt -c 4096 --attention refine --delta 0.03,0.1\n"
      "  sluice needle -m MODEL -f wiki.txt --task needle,keys,variables,words --attention refine\n"
      "  sluice needle -m MODEL -f wiki.txt -c 4096 --attention baseline:quest --keep 0.1,0.2\n"
      "  sluice needle -m MODEL -f wiki.txt -c 4096 --depths 5 --cases 4 --plan plan.json");
  auto flags = std::make_shared<NeedleFlags>();
  add_common_options(*command, *flags);
  command->remove_option(command->get_option("--context"));
  command->add_option("-f,--file", flags->file, "Text file to hide needles in")->required();
  command
      ->add_option("-c,--context", flags->grid.contexts,
                   "Tokens of a prompt, answer included; several with commas (default 4096, or\n"
                   "what the model allows)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command
      ->add_option(
          "--task", flags->tasks,
          "What is hidden and asked for, several with commas: needle, a number (default);\n"
          "keys, one of eight numbers; variables, a chain of assignments; words, the\n"
          "three most frequent of some. In the form of RULER")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"needle", "keys", "variables", "words"}));
  command->add_option("--depths", flags->grid.n_depths, "Depths, evenly spaced over the text")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  command
      ->add_option("--cases", flags->grid.n_cases,
                   "Cases of each length and depth: other numbers, and other parts of the text\n"
                   "where it is long enough")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--seed", flags->grid.seed, "Chooses the first number; the others count on")
      ->check(whole_number())
      ->capture_default_str();
  command
      ->add_option("--separator", flags->separator,
                   "What parts documents in the file; empty for none")
      ->capture_default_str();
  add_plan_option(*command, flags->plan);
  add_attention_options(*command, flags->attention, /*lists=*/true);
  add_baseline_options(*command, flags->attention);
  add_linear_options(*command, flags->linear, /*lists=*/true);
  return [flags](const std::string& command_line) {
    flags->command_line = command_line;
    run_needle(*flags);
  };
}

}  // namespace sluice::impl::cli
