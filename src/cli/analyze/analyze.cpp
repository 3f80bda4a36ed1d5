// sluice analyze: the representative sets of every layer of a model on a text.

#include "eval/analyze/analyze.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/analyze/analyze_joint.h"
#include "cli/analyze/analyze_plan.h"
#include "cli/analyze/analyze_subspace.h"
#include "cli/analyze/analyze_tables.h"
#include "cli/commands.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "core/error.h"
#include "eval/analyze/analyze_results.h"
#include "eval/results.h"
#include "plan/attention_plan.h"
#include "ranks/world.h"
#include "select/rules.h"

namespace sluice::impl::cli {
namespace {

struct AnalyzeFlags : CommonOptions {
  std::string file;
  std::string separator = "<|endoftext|>";
  std::string format = "md";
  std::vector<int64_t> contexts;
  std::vector<std::string> rules = {"cascade-paper", "cascade-causal", "cascade-cover"};
  std::vector<std::string> spaces;  // empty, as the two below: what goes with the first rule
  std::vector<double> taus = {kPaperTau};
  int64_t windows = 4;
  std::optional<int64_t> sinks;
  std::optional<double> outlier_ratio;
  int64_t deep = -1;
  uint64_t seed = 0;
  bool subspace = false;
  bool full = false;
  bool joint = false;
  std::string plan;
  std::string bases;            // of joint selection, which they ask for
  std::vector<int64_t> ranks;   // of --subspace (the largest) and of joint selection
  std::vector<double> running;  // thresholds of the joint cascade in one pass, which they ask for

  bool wants_joint() const { return joint || !bases.empty() || !running.empty(); }
};

AnalyzeOptions analyze_options(const AnalyzeFlags& flags, const ModelSpec& spec) {
  AnalyzeOptions options;
  options.taus = distinct(flags.taus);
  for (const std::string& name : distinct(flags.spaces))
    options.spaces.push_back(row_space_of(name).value());
  for (const std::string& name : distinct(flags.rules))
    options.rules.push_back(rule_of(name).value());
  // What the flags leave open follows from the first rule, as it does where attention uses it.
  const LayerPlan settings =
      rule_settings(options.rules.front(), flags.sinks, flags.outlier_ratio, spec);
  if (options.spaces.empty()) options.spaces = {row_space_of(space_name(settings.space)).value()};
  options.sinks = settings.sinks;
  options.outlier_ratio = settings.outlier_ratio;
  options.n_windows = flags.windows;
  options.seed = flags.seed;
  options.first_deep_layer = flags.deep >= 0 ? flags.deep : default_deep_layer(spec);
  if (options.first_deep_layer >= spec.n_layers)
    throw Error(fmt::format("--deep {} is beyond the last layer of the model, {}",
                            options.first_deep_layer, spec.n_layers - 1),
                fmt::format("0 to {}", spec.n_layers - 1));
  return options;
}

// The paper's length where the user names none, and the model has it.
std::vector<int64_t> contexts_of(const AnalyzeFlags& flags, const ModelSpec& spec) {
  if (flags.contexts.empty()) return {std::min(kPaperTokens, spec.max_positions)};
  return distinct(flags.contexts);
}

// What is measured in addition to the sets.
struct Extras {
  std::optional<SubspaceProfile> subspaces;
  std::optional<JointProfile> joint;
  std::vector<OnePassProfile> one_pass;
};

// The paper's tables, and those that its readers missed.
void append_all_tables(const AnalyzeReport& report,
                       const std::function<void(std::vector<TextTable>)>& append) {
  const Profile& first = report.profiles.front();
  append(layer_tables(report, first));
  append(summary_tables(report));
  append({covering_table(report)});
  for (const Profile& profile : report.profiles) append({agreement_table(report, profile)});
  append({missed_table(report, first)});
  append({matrix_table(report, first)});
  append({bound_table(first)});
  if (first.space == RowSpace::kResidual) append({persistence_table(first)});
  const auto of_heads =
      std::find_if(report.profiles.begin(), report.profiles.end(),
                   [](const Profile& profile) { return profile.space == RowSpace::kKey; });
  if (of_heads != report.profiles.end()) append({head_table(report, *of_heads)});
}

void print_report(const AnalyzeReport& report, const Extras& extras, const AnalyzeFlags& flags) {
  std::vector<TextTable> tables;
  const auto append = [&](std::vector<TextTable> more) {
    for (TextTable& table : more)
      if (!table.empty()) tables.push_back(std::move(table));
  };
  const Profile& first = report.profiles.front();
  if (extras.subspaces) append({subspace_table(*extras.subspaces, first)});
  if (extras.joint) append({joint_table(*extras.joint)});
  if (!extras.one_pass.empty()) append({one_pass_table(extras.joint->options, extras.one_pass)});
  if (flags.full)
    append_all_tables(report, append);
  else
    append({depth_table(report), cascade_table(report), covering_table(report)});
  print("{}: layer by layer for {}; mean ± standard deviation over {} window{}\n",
        report.model_name, profile_label(first), first.n_windows, first.n_windows == 1 ? "" : "s");
  for (TextTable& table : tables) {
    table.drop_empty_columns();
    print("\n{}", flags.format == "csv" ? table.csv() : table.markdown());
  }
  if (flags.quiet || flags.format == "csv") return;
  if (!flags.full)
    print(
        "\nuncovered: tokens without a representative that is close enough. missed: members of the "
        "independent set that a set lacks. --full has the paper's tables.\n");
  print("{}{}\n", flags.full ? "\n" : "", analyze_conclusion(report));
}

void run_analyze(AnalyzeFlags& flags) {
  if (!flags.plan.empty())
    return run_analyze_plan({.options = flags,
                             .plan = flags.plan,
                             .file = flags.file,
                             .separator = flags.separator,
                             .format = flags.format,
                             .contexts = distinct(flags.contexts),
                             .n_windows = flags.windows});
  if (!flags.ranks.empty() && !flags.subspace && !flags.wants_joint())
    throw CLI::ValidationError("--rank is for --subspace and --joint");
  check_outputs(flags, {flags.file, flags.bases});
  check_read_again(flags.file);
  const auto checkpoint = open_checkpoint(flags.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const ModelSpec& spec = checkpoint->spec();
  AnalyzeOptions options = analyze_options(flags, spec);
  options.want_map = flags.wants_results();
  options.communicator = &world();
  const std::vector<int64_t> contexts = contexts_of(flags, spec);
  flags.context = *std::max_element(contexts.begin(), contexts.end());
  const TextSource source{
      .path = flags.file, .separator = flags.separator, .tokenizer = *tokenizer};
  {  // a text that is too short is refused before the work
    TextStream text = source.open();
    first_window(text, std::min(flags.context, spec.max_positions));
  }
  std::optional<SubspaceRequest> subspace;
  if (flags.subspace)
    subspace = subspace_request(flags.ranks, flags.windows, flags.context, spec, source);
  std::optional<JointRequest> joint;
  if (flags.wants_joint())
    joint = joint_request({.checkpoint = *checkpoint,
                           .analyze = options,
                           .contexts = contexts,
                           .ranks = distinct(flags.ranks),
                           .bases = flags.bases},
                          source);
  const SidecarBases* bases = joint && joint->bases ? &*joint->bases : nullptr;
  if (bases != nullptr && bases->origin.same_text == true)
    say("sluice: the bases were made from this very text\n");
  Model model = load_model(checkpoint, flags);
  const ProjectionNorms norms = projection_norms(*checkpoint);

  AnalyzeResult result;
  for (const int64_t n_tokens : contexts) {
    ProgressBar bar(fmt::format("analyze {} tokens", n_tokens), flags.quiet);
    TextStream text = source.open();
    AnalyzeResult found =
        analyze(model, norms, text, n_tokens, options, [&](double done) { bar.update(done, ""); });
    std::move(found.profiles.begin(), found.profiles.end(), std::back_inserter(result.profiles));
    if (found.map) result.map = std::move(found.map);
    options.want_map = false;  // one is enough to look at
  }
  Extras extras;
  if (subspace) extras.subspaces = run_subspace(*subspace, source, model, flags.quiet);
  // What follows is not divided: the first measures and writes.
  if (world().rank() > 0) return;
  if (joint) extras.joint = run_joint(*joint, source, model, flags.quiet);
  if (!flags.running.empty()) {
    TextStream text = source.open();
    extras.one_pass = profile_one_pass(model, text, joint->options, distinct(flags.running));
  }
  if (flags.wants_results()) {
    nlohmann::json results = analyze_results(
        {.command_line = flags.command_line,
         .checkpoint = *checkpoint,
         .model = model,
         .text = flags.file,
         .model_sha256 = bases != nullptr ? bases->bases.model_sha256 : "",
         .n_ranks = world().size()},
        {.options = options, .contexts = contexts, .result = result, .tokenizer = *tokenizer});
    if (extras.subspaces) results["subspace"] = describe_subspaces(*extras.subspaces);
    if (extras.joint) results["joint"] = describe_joint(*extras.joint);
    if (!extras.one_pass.empty()) results["joint"]["one_pass"] = describe_one_pass(extras.one_pass);
    write_outputs(results, flags);
  }
  const AnalyzeReport report{.model_name = checkpoint->path.filename().string(),
                             .spec = spec,
                             .rules = options.rules,
                             .exempts = options.sinks > 0 || options.outlier_ratio > 0,
                             .profiles = std::move(result.profiles)};
  print_report(report, extras, flags);
}

}  // namespace

Run add_analyze(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "analyze",
      "Which tokens represent the others, at every layer of a model on a text.\n"
      "\n"
      "Runs the model densely over windows of the text and follows the sets of representatives\n"
      "from layer to layer. --full prints the tables of the cascade paper for it, the agreement\n"
      "of each cascade with the independent set of the same layer, two controls (a random set, a\n"
      "set inherited without validation), and the attention error against the paper's bound.\n"
      "Lists take commas; tables show the first combination layer by layer and summaries of all,\n"
      "--json has everything.\n"
      "\n"
      "Space, sinks and outliers follow the first rule of --select where they are not given:\n"
      "residual, 0 and none with independent and cascade-paper, the paper's; normed, 4 (encoders\n"
      "0) and 8 with the others.\n"
      "\n"
      "With --plan it follows the sets of a plan's layers instead, each by its own rule and\n"
      "thresholds, and counts the keys that its heads read. Tables that compare rules or\n"
      "thresholds with each other are left out; what the plan loses is eval's to tell.\n"
      "\n"
      "  sluice analyze -m MODEL -f wiki.txt --tau 0.3,0.5 -c 512,2048 --json profile.json\n"
      "  sluice analyze -m MODEL -f wiki.txt --plan plan.json");
  auto flags = std::make_shared<AnalyzeFlags>();
  add_common_options(*command, *flags);
  command->remove_option(command->get_option("--context"));
  const auto list = [&](const std::string& name, auto& values, const std::string& text) {
    return command->add_option(name, values, text)->delimiter(',')->allow_extra_args(false);
  };
  command->add_option("-f,--file", flags->file, "Text file to run over")->required();
  list("-c,--context", flags->contexts,
       "Tokens of a window; 512 or the plan's, or the model's limit")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  list("--tau", flags->taus, "Redundant are tokens of cosine 1 - tau^2 or more; 0.3")
      ->check(number_between(0, std::nextafter(1.0, 0.0), "0 to below 1"));
  list("--select", flags->rules,
       "Rules: cascade-paper, cascade-causal, cascade-cover (default: all three), and\n"
       "independent, greedy, which are always shown; controls follow the first cascade")
      ->check(CLI::IsMember(rule_names()));
  list(
      "--space", flags->spaces,
      "Rows compared: residual, normed, key (a set per head);\nby default as the first rule has it")
      ->check(CLI::IsMember({"residual", "normed", "key"}));
  command->add_option("--windows", flags->windows, "Windows of the text, at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--sinks", flags->sinks,
                   "First tokens, exempt from selection (default 4; paper 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command
      ->add_option("--outlier-ratio", flags->outlier_ratio,
                   "Exempt above this multiple of the median norm (default 8; paper 0: nobody)")
      ->check(number_between(0, std::numeric_limits<double>::max(), "0 or more"));
  command
      ->add_option("--deep", flags->deep,
                   "First deep layer; the middle, or the paper's for its models")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command->add_option("--format", flags->format, "Of the tables: md or csv")
      ->check(CLI::IsMember({"md", "csv"}))
      ->capture_default_str();
  command->add_flag("--full", flags->full,
                    "All tables: the paper's, agreement with independent sets, the bound");
  command->add_flag("--subspace", flags->subspace,
                    "Also the hidden axis: effective rank of what linear layers read, and how far\n"
                    "neighbouring layers share its directions");
  command->add_flag("--joint", flags->joint,
                    "Also joint selection: how many pairs a basis decides, and the time it takes;\n"
                    "bases come from --bases, or from the text after the windows");
  list("--running", flags->running,
       "Also the joint cascade in one pass: set and basis inherited together, the basis updated\n"
       "where it leaves out more than this share of the energy; 0: always, 1: never")
      ->check(number_between(0, 1, "0 to 1"));
  command->add_option("--bases", flags->bases,
                      "Bases for --joint: a file of calibrate --selection normed,residual");
  list("--rank", flags->ranks,
       "Directions: of each basis of --joint (d_model / 16, / 8, / 4), the largest of those\n"
       "compared by --subspace (d_model / 4)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--seed", flags->seed, "Of the random control")
      ->check(whole_number())
      ->capture_default_str();
  command
      ->add_option("--separator", flags->separator,
                   "What parts documents in the file; empty for none")
      ->capture_default_str();
  CLI::Option* plan = add_plan_option(*command, flags->plan);
  for (const char* other : {"--tau", "--select", "--space", "--sinks", "--outlier-ratio", "--deep",
                            "--subspace", "--joint", "--running", "--bases", "--rank", "--seed"})
    plan->excludes(command->get_option(other));
  return [flags](const std::string& command_line) {
    flags->command_line = command_line;
    run_analyze(*flags);
  };
}

}  // namespace sluice::impl::cli
