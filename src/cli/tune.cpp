// sluice tune: a loss that is accepted in, the fastest plan that keeps it out.

#include "tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/conclusion/conclusion.h"
#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/options/streams.h"
#include "cli/signals.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "eval/plan_in_use.h"
#include "eval/results.h"
#include "ranks/world.h"
#include "tune/setup.h"
#include "tune/tune_results.h"

namespace sluice::impl::cli {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct TuneFlags : CommonOptions {
  std::string file;
  std::string output;
  std::string separator = "<|endoftext|>";
  std::string objective = "prefill";
  std::string attention = "refine";
  std::vector<std::string> fars;
  std::string measurements;
  std::optional<double> max_kl, max_kl_p99, max_kl_p999, max_ppl_ratio;
  std::vector<double> taus, deltas;
  std::vector<int64_t> windows;
  std::optional<int64_t> segment, page, tile;
  bool no_needles = false;
  TuneOptions tune;
  LinearFlags linear;
};

std::vector<GroupPlan> group_plans(const std::vector<UniformLinear>& choices) {
  std::vector<GroupPlan> plans;
  for (const UniformLinear& choice : choices)
    if (choice.kind != LinearKind::kDense)
      plans.push_back({.kind = choice.kind,
                       .rank = choice.kind == LinearKind::kGsi ? choice.rank : 0,
                       .epsilon = choice.epsilon,
                       .adaptive = choice.adaptive});
  return plans;
}

// All groups of every kind, so that each can be tried.
void prepare(Model& model, const std::vector<GroupPlan>& kinds,
             const std::optional<SidecarBases>& bases) {
  for (const GroupPlan& kind : kinds)
    model.prepare_linear(linear_plan_of_all(kind, model.spec().n_layers),
                         bases ? &bases->bases : nullptr);
}

std::string loss_text(const Loss& loss) {
  return fmt::format(
      "KL {:.5f} ± {:.5f}, p99 {:.2g}, p99.9 {:.2g}, perplexity x {:.4f} ± {:.4f}, {} tokens, "
      "{} documents",
      loss.kl.mean(), loss.kl.standard_error(), loss.kl_values.quantile(0.99),
      loss.kl_values.quantile(0.999), loss.ppl_ratio(), loss.ppl_ratio_stderr(), loss.kl.count(),
      loss.kl.n_units());
}

// "KL 0.01 and perplexity x 1.02, held by mean + 2 standard errors; KL of tokens p99 0.1 and ..."
std::string contract_text(const Contract& contract) {
  const auto limits = [](std::initializer_list<std::pair<const char*, double>> named) {
    std::vector<std::string> texts;
    for (const auto& [name, most] : named)
      if (!std::isinf(most)) texts.push_back(fmt::format("{} {:.4g}", name, most));
    return fmt::format("{}", fmt::join(texts, " and "));
  };
  const std::string tail = limits({{"p99", contract.max_kl_p99}, {"p99.9", contract.max_kl_p999}});
  return limits({{"KL", contract.max_kl}, {"perplexity x", contract.max_ppl_ratio}}) +
         ", held by mean + 2 standard errors" + (tail.empty() ? "" : "; KL of tokens " + tail);
}

void print_result(const TuneFlags& flags, const TuneResult& result) {
  const auto line = [](const char* name, const std::string& text) {
    print("{:<12} {}\n", name, text);
  };
  line("contract", contract_text(flags.tune.contract));
  line("predicted", fmt::format("KL {:.5f}, {:.1f}% of the {} of what may change",
                                result.predicted_kl, 100 * result.cost / result.dense_cost,
                                is_time(flags.tune.objective) ? "time"
                                : flags.objective == "memory" ? "memory"
                                                              : "reads"));
  line("calibration", loss_text(result.calibration));
  line("held out", loss_text(result.held_out));
  if (const Needles& needles = result.held_out.needles; needles.n > 0)
    line("needles", fmt::format("found {} of {} that dense finds, of {} held out", needles.found,
                                needles.by_dense, needles.n));
  line("gap", fmt::format("KL {:+.5f}, held out against calibration",
                          result.held_out.kl.mean() - result.calibration.kl.mean()));
  for (const BenchCase& found : result.speed.cases)
    if (found.candidate > 0)
      line(found.name.c_str(), fmt::format("{:.2f}x dense ({:.2f} to {:.2f})", found.speedup.middle,
                                           found.speedup.low, found.speedup.high));
  if (!result.dense_because.empty())
    line("plan", "dense: " + result.dense_because);
  else if (!is_time(flags.tune.objective))
    line("auto", fmt::format("followed whatever its speed, by prompts of up to {} tokens",
                             flags.tune.split.context));
  else
    line("auto",
         fmt::format("reading prompts {}; generating after {}",
                     result.prefill_from ? fmt::format("of {} tokens or more", *result.prefill_from)
                                         : "never",
                     result.decode_from ? fmt::format("{} or more", *result.decode_from) : "none"));
  line("written", fmt::format("{}, after {:.0f} seconds", flags.output, result.seconds));
}

// What heads may choose from. Refuses flags of the other mode.
HeadOptions head_options(const TuneFlags& flags) {
  HeadOptions heads;
  heads.mode = *mode_of(flags.attention);
  const auto belongs = [&](bool given, const char* name, AttentionMode mode) {
    if (given && heads.mode != mode)
      throw CLI::ValidationError(
          fmt::format("{} has an effect on --attention {} alone", name, mode_name(mode)));
  };
  belongs(!flags.taus.empty(), "--tau", AttentionMode::kKeys);
  belongs(!flags.fars.empty(), "--far", AttentionMode::kKeys);
  belongs(!flags.deltas.empty(), "--delta", AttentionMode::kRefine);
  belongs(flags.segment.has_value(), "--segment", AttentionMode::kRefine);
  belongs(flags.page.has_value(), "--page", AttentionMode::kRefine);
  belongs(flags.tile.has_value(), "--tile", AttentionMode::kRefine);
  // Refined attention keeps all keys.
  belongs(flags.objective == "memory", "--objective memory", AttentionMode::kKeys);
  belongs(flags.objective == "reads" || flags.objective == "decode-reads",
          "--objective reads, decode-reads", AttentionMode::kRefine);
  const auto ascending = [](const std::vector<double>& given, std::vector<double>& out) {
    if (!given.empty()) out = distinct(given);
    std::sort(out.begin(), out.end());
  };
  ascending(flags.taus, heads.taus);
  ascending(flags.deltas, heads.deltas);
  if (!flags.windows.empty()) heads.windows = distinct(flags.windows);
  if (!flags.fars.empty()) heads.fars.clear();
  for (const std::string& far : distinct(flags.fars)) heads.fars.push_back(*far_of(far));
  heads.refine.segment = flags.segment.value_or(heads.refine.segment);
  heads.refine.page = flags.page.value_or(heads.refine.page);
  heads.refine.tile = flags.tile.value_or(heads.refine.tile);
  return heads;
}

void run_tune(TuneFlags& flags) {
  if (!flags.max_kl && !flags.max_ppl_ratio)
    throw CLI::ValidationError("tune needs the loss that you accept: --max-kl, --max-ppl-ratio");
  TuneOptions& options = flags.tune;
  options.heads = head_options(flags);
  options.needles = !flags.no_needles;
  std::vector<UniformLinear> linear = linear_choices(flags.linear, /*joint=*/false);
  if (flags.measurements.empty() && is_standard_output(flags.output))
    throw CLI::ValidationError(
        "a plan that goes to standard output needs --measurements, a file to keep them in");
  if (flags.measurements.empty()) flags.measurements = flags.output + ".measurements";
  check_outputs(flags, {flags.file, flags.linear.bases, flags.measurements}, flags.output);
  check_outputs(flags, {flags.file, flags.linear.bases, flags.output}, flags.measurements);
  check_read_again(flags.file);
  const auto checkpoint = open_checkpoint(flags.model);
  const ModelSpec& spec = checkpoint->spec();
  check_tunable(spec, *objective_of(flags.objective));
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const std::optional<SidecarBases> bases =
      read_bases_of(flags.linear, *checkpoint, flags.file, linear);
  std::optional<PlanBases> plan_bases;
  if (bases) {
    const std::string plan = is_standard_output(flags.output) ? "plan.json" : flags.output;
    plan_bases = PlanBases{bases_seen_from(flags.linear.bases, plan), bases->bases.text_sha256};
  }
  options.contract = contract_of({.max_kl = flags.max_kl,
                                  .max_kl_p99 = flags.max_kl_p99,
                                  .max_kl_p999 = flags.max_kl_p999,
                                  .max_ppl_ratio = flags.max_ppl_ratio});
  options.objective = *objective_of(flags.objective);
  options.linear = group_plans(linear);
  TextStream text(flags.file, *tokenizer, flags.separator);
  options.split.context = tune_context(flags.context, spec.max_positions);
  set_head_defaults(options.heads, !flags.windows.empty(), options.split.context, spec);
  // Room to decode behind it; not where a longer context would change what layers see.
  const bool sliding = std::any_of(spec.windows.begin(), spec.windows.end(),
                                   [](int64_t window) { return window > 0; });
  flags.context = sliding || !spec.causal
                      ? options.split.context
                      : std::min(options.split.context + kDecodeTokens, spec.max_positions);
  Model model = load_model(checkpoint, flags);
  prepare(model, options.linear, bases);
  // That of the bases is the checkpoint's: it has been compared.
  const std::string sha256 = bases ? bases->bases.model_sha256 : model_sha256(*checkpoint);
  const nlohmann::json key = measurements_key({.model_sha256 = sha256,
                                               .text = flags.file,
                                               .separator = flags.separator,
                                               .bases = bases ? flags.linear.bases : ""},
                                              options, model.backend());
  options.machine = machine_text(model.backend());
  options.communicator = &world();
  const bool writes = world().rank() == 0;
  Measurements measurements(writes ? flags.measurements : "", key);
  TuneResult result;
  {
    const KeptWork kept(writes ? flags.measurements : "");
    ProgressBar bar("tune", flags.quiet);
    bool begun = false;
    result = tune(model, text, options, measurements, [&](double done, const std::string& now) {
      if (!std::exchange(begun, true)) bar.begin_at(done);  // measured by an earlier run
      bar.update(done, now);
    });
  }
  const ResultsOrigin origin{.command_line = flags.command_line,
                             .checkpoint = *checkpoint,
                             .model = model,
                             .text = flags.file,
                             .model_sha256 = sha256,
                             .bases = bases ? &*bases : nullptr,
                             .n_ranks = world().size()};
  if (!writes) return;
  write_plan_file(tuned_plan_file(origin, options, result, plan_bases), flags.output);
  if (flags.wants_results()) write_outputs(tune_results(origin, options, result), flags);
  if (result.text.one_document)
    say("sluice: the text is one document; what follows its first part was held "
        "out, which says less than other documents would\n");
  warn_of_same_text(bases);
  print_result(flags, result);
  if (!flags.quiet) print("{}\n", tune_conclusion(options, result, flags.output));
}

// What the plan has to keep.
void add_contract_options(CLI::App& command, TuneFlags& flags) {
  command
      .add_option("--max-kl", flags.max_kl,
                  "Nats per token that may be lost, mean of KL(dense‖plan)")
      ->check(number_between(0, 1e6, "0 or more"));
  command
      .add_option("--max-kl-p99", flags.max_kl_p99,
                  "Nats that 99% of the tokens may lose at most (default 10 x --max-kl; inf\n"
                  "for no limit)")
      ->check(number_between(0, kInf, "0 or more, or inf"));
  command
      .add_option("--max-kl-p999", flags.max_kl_p999, "The same of 99.9% (default 50 x --max-kl)")
      ->check(number_between(0, kInf, "0 or more, or inf"));
  command
      .add_option("--max-ppl-ratio", flags.max_ppl_ratio,
                  "Perplexity that is accepted, as a multiple of dense's")
      ->check(number_between(1, 1e6, "1 or more"));
}

// What heads may do.
void add_head_options(CLI::App& command, TuneFlags& flags) {
  command
      .add_option("--attention", flags.attention,
                  "What heads may do that are not dense: refine, or keys, which merges far\n"
                  "keys for good")
      ->check(CLI::IsMember({"refine", "keys"}))
      ->capture_default_str();
  const auto list = [](CLI::Option* option) {
    option->delimiter(',')->allow_extra_args(false)->multi_option_policy(
        CLI::MultiOptionPolicy::TakeAll);
  };
  list(command
           .add_option("--tau", flags.taus,
                       "keys: thresholds that heads may have (default "
                       "0.3,0.4,0.5,0.7,0.85)")
           ->check(number_between(0, std::nextafter(1.0, 0.0), "0 to below 1")));
  list(command
           .add_option("--window", flags.windows,
                       "Windows that layers may have (default 128 up to a context of 2048,\n"
                       "else 0; keys, with blocks of the same size, 128,64,32)")
           ->check(CLI::Range(int64_t{0}, int64_t{1} << 20)));
  list(command
           .add_option("--far", flags.fars,
                       "keys: what may stand for a cluster of far keys (default\n"
                       "centroid,values)")
           ->check(CLI::IsMember({"centroid", "values", "own"})));
  list(command
           .add_option("--delta", flags.deltas,
                       "refine: deltas that heads may have, inf for means only (default\n"
                       "0.003,0.01,0.03,0.1,0.3,inf)")
           ->check(number_between(0, kInf, "0 or more, or inf")));
  command
      .add_option("--segment", flags.segment,
                  "refine: tokens that are clustered together (default a sixteenth of\n"
                  "the context, 128 to 512)")
      ->check(CLI::Range(int64_t{1}, kMaxSegment));
  command.add_option("--page", flags.page, "refine: tokens of a cluster (default 16)")
      ->check(CLI::Range(int64_t{1}, kMaxSegment));
  command
      .add_option("--tile", flags.tile,
                  "refine: queries of a prompt that open clusters together, no more than\n"
                  "the window (default 128). Losses of --objective decode are measured\n"
                  "with 1, as decoding runs")
      ->check(CLI::Range(int64_t{1}, kMaxSegment));
}

}  // namespace

Run add_tune(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "tune",
      "The fastest plan that keeps a loss you state.\n"
      "\n"
      "Measures what every single change costs in KL (each key/value head: clusters that are\n"
      "opened from one of several deltas on, or a window alone) and what it saves in time on\n"
      "this machine, puts those together that save most for what they cost, and holds the whole\n"
      "against documents that were not used for it: mean plus two standard errors must stay\n"
      "within the contract, and so must 99% and 99.9% of the tokens within their own limits. To\n"
      "every eight windows of text comes a needle, a prompt that asks for a number far back; a\n"
      "plan that loses one which dense finds does not hold. Where nothing pays the plan is\n"
      "dense. An interrupted run goes on where it was. Of an encoder (BERT, ESM-2) the loss is "
      "that\n"
      "of masked tokens, and there are no needles.\n"
      "\n"
      "  sluice tune -m MODEL -f wiki.txt --max-kl 0.01 -c 1024 -o plan.json\n"
      "  sluice generate -m MODEL -f prompt.txt --plan plan.json");
  auto flags = std::make_shared<TuneFlags>();
  add_common_options(*command, *flags);
  command->get_option("--context")
      ->description("Tokens of context; 0 takes 1024, or the model's where it has fewer");
  command->add_option("-f,--file", flags->file, "Text file to tune and to judge on")->required();
  command->add_option("-o,--output", flags->output, "Where the plan goes")->required();
  add_contract_options(*command, *flags);
  command
      ->add_option("--objective", flags->objective,
                   "What to save: time of prefill or decode; memory (of keys); or, on any\n"
                   "machine alike, keys that refine reads: reads, decode-reads")
      ->check(CLI::IsMember({"prefill", "decode", "memory", "reads", "decode-reads"}))
      ->capture_default_str();
  add_head_options(*command, *flags);
  constexpr int64_t kMost = int64_t{1} << 20;
  command->add_option("--windows", flags->tune.split.n_calibration, "Windows of text to tune on")
      ->check(CLI::Range(int64_t{1}, kMost))
      ->capture_default_str();
  command
      ->add_option("--held-out", flags->tune.split.n_held_out,
                   "Windows of other documents to judge by")
      ->check(CLI::Range(int64_t{2}, kMost))
      ->capture_default_str();
  command->add_flag("--no-needles", flags->no_needles,
                    "No needles, prompts that ask for a number far back, among the windows");
  command->add_option("--seed", flags->tune.split.seed, "Which documents go where")
      ->check(whole_number())
      ->capture_default_str();
  command->add_option("--measurements", flags->measurements,
                      "Where measurements are kept, for a run to go on or another contract\n"
                      "(default the output's name and .measurements)");
  command
      ->add_option("--separator", flags->separator,
                   "What parts documents in the file; empty for none")
      ->capture_default_str();
  add_linear_options(*command, flags->linear, /*lists=*/true);
  return [flags](const std::string& command_line) {
    flags->command_line = command_line;
    run_tune(*flags);
  };
}

}  // namespace sluice::impl::cli
