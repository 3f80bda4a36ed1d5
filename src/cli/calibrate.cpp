// sluice calibrate: activation bases of a model from a text, in a sidecar file.

#include "eval/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/conclusion/conclusion.h"
#include "cli/options/options.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "cli/terminal/text_table.h"
#include "core/error.h"
#include "core/quote.h"
#include "eval/calibrate_results.h"
#include "plan/attention_plan.h"
#include "ranks/world.h"
#include "subspace/sidecar.h"

namespace sluice::impl::cli {
namespace {

struct CalibrateFlags : CommonOptions {
  std::string file;
  std::string output;
  std::string separator = "<|endoftext|>";
  std::vector<int64_t> ranks;
  std::vector<std::string> selection;  // spaces
  std::vector<double> running;         // thresholds
  int64_t windows = 16;
  int64_t memory_mib = 1024;
  bool fresh = false;
  bool inherit = false;
  bool compare = false;
  bool full = false;
};

CalibrateOptions calibrate_options(const CalibrateFlags& flags, const ModelSpec& spec) {
  CalibrateOptions options;
  options.inputs = linear_inputs(spec);
  for (const BasisInput input : {BasisInput::kSelectionNormed, BasisInput::kSelectionResidual}) {
    const std::string_view space = input == BasisInput::kSelectionNormed ? "normed" : "residual";
    if (std::find(flags.selection.begin(), flags.selection.end(), space) != flags.selection.end())
      options.inputs.push_back(input);
  }
  options.ranks = flags.ranks;
  std::sort(options.ranks.begin(), options.ranks.end());
  options.ranks.erase(std::unique(options.ranks.begin(), options.ranks.end()), options.ranks.end());
  options.n_windows = flags.windows;
  options.inherit = flags.fresh     ? Inheritance::kNever
                    : flags.inherit ? Inheritance::kAlways
                                    : Inheritance::kWherePaying;
  options.compare = flags.compare;
  options.running = distinct(flags.running);
  options.memory = flags.memory_mib << 20;
  // Whom selection exempts by default.
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  const LayerPlan plan = layer_plan(choice, {.n_layers = spec.n_layers,
                                             .n_kv_heads = spec.n_kv_heads,
                                             .causal = spec.causal,
                                             .context = spec.max_positions});
  options.sinks = plan.sinks;
  options.outlier_ratio = plan.outlier_ratio;
  check_ranks(options, spec.row_widths());
  return options;
}

// Why no basis was inherited; empty where that was asked for.
std::string reason_for_none(const CalibrateOptions& options, const CalibrationTotals& totals,
                            const ModelSpec& spec) {
  if (options.inherit == Inheritance::kNever) return "";
  if (spec.n_layers == 1) return "the model has one layer";
  if (totals.n_tried > 0)
    return fmt::format("{} were tried and did not settle in time", totals.n_tried);
  const int64_t rank = largest_paying_rank(spec.d_model);
  return fmt::format(
      "with a width of {} inheriting can take fewer operations {}; --inherit tries all the same",
      spec.d_model, rank > 0 ? fmt::format("up to rank {}", rank) : "at no rank");
}

// Updates of running bases, by threshold and input.
TextTable running_table(const CalibrateOptions& options, const Calibration& calibration) {
  TextTable table(
      fmt::format(
          "Running bases of rank {}, behind the first layer: inherited as they are where "
          "the residual is at most the threshold. Updates: directions that are new, and "
          "those of fresh bases; operations saved count the product that shows the residual",
          options.ranks.back()),
      {"threshold", "input", "bases updated", "of", "updates", "of", "updates saved",
       "operations saved", "energy", "fresh energy"},
      2);
  constexpr Digits kTenths{.decimals = 1, .factor = 100, .unit = "%"};
  for (const RunningTrack& track : calibration.running)
    for (const BasisInput input : options.inputs) {
      const RunningTotals totals = running_totals(track, input);
      table.add({words(fmt::format("{}", track.threshold)),
                 words(std::string(basis_input_name(input))), cell(totals.bases_updated),
                 cell(totals.n_bases), cell(totals.updates), cell(totals.fresh_updates),
                 cell(totals.updates_saved(), kTenths), cell(totals.work_saved, kTenths),
                 cell(totals.energy, kTenths), cell(totals.fresh_energy, kTenths)});
    }
  return table;
}

void print_results(const CalibrateFlags& flags, const CalibrateOptions& options,
                   const Calibration& calibration, const ModelSpec& spec) {
  std::vector<std::string> columns = {"layer", "input"};
  for (const int64_t rank : options.ranks) columns.push_back(fmt::format("energy k={}", rank));
  if (flags.full) columns.insert(columns.end(), {"unrefined", "basis", "iterations", "work saved"});
  if (options.compare) columns.push_back("below fresh");
  constexpr Digits kFinePercent{.decimals = 2, .factor = 100, .unit = "%"};
  TextTable table(
      fmt::format("Bases of rank {}: share of the energy captured{}", options.ranks.back(),
                  flags.full ? "; unrefined: by the basis of the layer before as it is" : ""),
      columns, 2);
  for (const GroupFigures& group : calibration.groups) {
    std::vector<Cell> row = {cell(group.layer), words(std::string(basis_input_name(group.input)))};
    for (const double energy : group.energies) row.push_back(cell(energy, kFinePercent));
    if (flags.full)
      row.insert(row.end(),
                 {group.start_energy ? cell(*group.start_energy, kFinePercent) : no_value(),
                  words(group.inherited ? "inherited" : "fresh"), cell(int64_t{group.iterations}),
                  cell(group.work_saved(), {.decimals = 1, .factor = 100, .unit = "%"})});
    if (options.compare)
      row.push_back(group.fresh_energy
                        ? cell(*group.fresh_energy - group.energies.back(), {.decimals = 6})
                        : no_value());
    table.add(std::move(row));
  }
  const CalibrationTotals totals(calibration);
  table.drop_empty_columns();
  print("{}\n", table.markdown());
  if (!options.running.empty()) print("{}\n", running_table(options, calibration).markdown());
  print(
      "{} tokens in {} windows, {} of {} bases inherited; {:.1f}% of the operations of fresh "
      "decompositions saved, {:.2f} s\n",
      calibration.bases.n_tokens, calibration.n_windows, totals.n_inherited,
      calibration.groups.size(), 100 * totals.work_saved(), totals.seconds);
  if (totals.n_inherited == 0)
    if (const std::string reason = reason_for_none(options, totals, spec); !reason.empty())
      print("none inherited: {}\n", reason);
  if (options.compare)
    print("fresh decompositions take {:.2f} s; {}\n", totals.fresh_seconds,
          totals.largest_loss
              ? fmt::format("inherited ones capture at most {:.6f} less", *totals.largest_loss)
              : "none was inherited to compare with them");
  print("{}: written\n", flags.output);
}

// A model's files are all that its folder holds: one more would change its hash.
void check_not_in_model(const std::string& output, const std::string& model) {
  if (same_file(output, model) || lies_in(output, model))
    throw Error(fmt::format("{}: is among the model's own files", path_label(output)),
                "-o takes a file outside of the model's folder");
}

void run_calibrate(const CalibrateFlags& flags) {
  check_not_in_model(flags.output, flags.model);
  check_outputs(flags, {flags.file}, flags.output);
  check_read_again(flags.file);
  const auto checkpoint = open_checkpoint(flags.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  CalibrateOptions options = calibrate_options(flags, checkpoint->spec());
  options.communicator = &world();
  TextStream text(flags.file, *tokenizer, flags.separator);
  Model model = load_model(checkpoint, flags);
  Calibration calibration;
  {
    ProgressBar bar("calibrate", flags.quiet);
    calibration = calibrate(model, text, options, [&](double done) { bar.update(done, ""); });
  }
  if (world().rank() > 0) return;  // the first writes
  const int64_t n_asked = options.n_windows * model.context();
  if (calibration.bases.n_tokens < n_asked)
    say("sluice: the text has {} tokens, fewer than the {} asked for\n", calibration.bases.n_tokens,
        n_asked);
  calibration.bases.model_sha256 = model_sha256(*checkpoint);
  calibration.bases.text_path = flags.file;
  calibration.bases.text_sha256 = sha256_of({flags.file});
  write_bases(calibration.bases, flags.output);
  if (flags.wants_results())
    write_outputs(calibrate_results({.command_line = flags.command_line,
                                     .checkpoint = *checkpoint,
                                     .model = model,
                                     .text = flags.file,
                                     .model_sha256 = calibration.bases.model_sha256,
                                     .n_ranks = world().size()},
                                    options, calibration),
                  flags);
  print_results(flags, options, calibration, checkpoint->spec());
  if (!flags.quiet) print("{}\n", calibrate_conclusion(calibration, flags.output));
}

}  // namespace

Run add_calibrate(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "calibrate",
      "Activation bases of a model from a text, for gated linear layers and joint selection.\n"
      "\n"
      "Runs the model densely over windows of the text, sums up second moments of what each\n"
      "linear layer reads, and keeps the directions of most energy. The bases go into a file of\n"
      "their own, which carries the model's hash; the checkpoint is not touched. A basis begins "
      "with\n"
      "that of the layer before and is refined, where that can take fewer operations than a full\n"
      "decomposition; else, and where refining does not do, it is made afresh.\n"
      "\n"
      "  sluice calibrate -m MODEL -f wiki.txt --rank 64,128 -o bases.safetensors");
  auto flags = std::make_shared<CalibrateFlags>();
  add_common_options(*command, *flags);
  command
      ->add_option("-f,--file", flags->file,
                   "Text file to calibrate on; not the one to be judged on")
      ->required();
  command->add_option("-o,--output", flags->output, "Where the bases go, a safetensors file")
      ->required();
  command
      ->add_option(
          "--rank", flags->ranks,
          "Directions of a basis; of several the largest is kept, and the energy of each told")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->required();
  command->add_flag("--full", flags->full, "Also how each basis was made");
  command->add_option("--windows", flags->windows, "Windows of --context tokens, at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  CLI::Option* fresh =
      command->add_flag("--fresh", flags->fresh, "A full decomposition for every basis");
  command->add_flag("--inherit", flags->inherit, "Try to inherit everywhere, paying or not")
      ->excludes(fresh);
  command->add_flag(
      "--compare", flags->compare,
      "Also make a fresh basis for each inherited one; print energies and times of both");
  command
      ->add_option("--running", flags->running,
                   "Also follow running bases: inherited as they are where at most this share of\n"
                   "the energy is left out, else updated; 0: all afresh, 1: none")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_between(0, 1, "0 to 1"));
  command
      ->add_option("--selection", flags->selection,
                   "Also bases of the unit rows that selection compares: normed, residual")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"normed", "residual"}));
  command
      ->add_option("--memory", flags->memory_mib,
                   "MiB for second moments; the text is read again for what does not fit")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command
      ->add_option("--separator", flags->separator,
                   "What parts documents in the file; empty for none")
      ->capture_default_str();
  return [flags](const std::string& command_line) {
    flags->command_line = command_line;
    run_calibrate(*flags);
  };
}

}  // namespace sluice::impl::cli
