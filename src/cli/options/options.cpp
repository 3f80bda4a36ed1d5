#include "cli/options/options.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "api/backends.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "core/error.h"
#include "core/quote.h"
#include "core/threads.h"
#include "eval/results.h"
#include "io/mapped_file.h"
#include "io/write_file.h"
#include "model/weight_type.h"
#include "ranks/cores.h"
#include "ranks/place.h"
#include "ranks/world.h"
#include "report/report.h"

namespace sluice::impl::cli {

void add_model_options(CLI::App& command, CommonOptions& options) {
  command.add_option("-m,--model", options.model, "Hugging Face model folder, or a .gguf file")
      ->required();
  command.add_option("--device", options.device, "Where to compute: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda", "reference"}))
      ->capture_default_str();
  command
      .add_option("--dtype", options.dtype,
                  "Number format of weights and activations: f32, or bf16 for half the memory")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  std::vector<std::string> types;
  for (const DType type : kWeightTypes) types.emplace_back(dtype_name(type));
  command
      .add_option(
          "--weights", options.weights,
          "Type of the matrices in memory. Without it they stay as they are stored, blocks\n"
          "of a .gguf file among them, and plain types get --dtype. A block type quantises\n"
          "them while loading; f32 or bf16, which must be --dtype, expands blocks.\n"
          "--linear works on the values of the blocks, expanded")
      ->check(CLI::IsMember(types));
  command
      .add_option("-t,--threads", options.threads,
                  "Threads; 0 takes every core, under mpirun this rank's share")
      ->check(CLI::Range(0, 4096).description(""))
      ->type_name("N")
      ->capture_default_str();
  command.add_option("-c,--context", options.context, "Tokens of context; 0 takes the model's")
      ->check(CLI::Range(int64_t{0}, kMostCount).description(""))
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--quiet", options.quiet, "Print results only, and on stderr the last figures");
}

void add_common_options(CLI::App& command, CommonOptions& options) {
  add_model_options(command, options);
  command.add_option("--json", options.json,
                     "Also write the results to this file; - for stdout alone");
  command.add_option("--html", options.html, "Also write a page that shows them, as report does");
}

CLI::Validator number_between(double min, double max, const char* expected) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        const bool ok = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
        return ok ? "" : fmt::format("{} given, expected {}", text, expected);
      },
      "");
}

namespace {

// 0: all.
int default_threads() {
  if (world().size() == 1) return 0;
  const RankCores cores = cores_of(world());
  if (cores.allowed < cores.machine)
    say("sluice: ranks may run on {} of the machine's {} cores (hint: mpirun --bind-to none, "
        "unless that is meant)\n",
        cores.allowed, cores.machine);
  return cores.own;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const CommonOptions& options) {
  set_threads(options.threads > 0 ? options.threads : default_threads());
  const sluice::Device device = options.device == "cuda"        ? sluice::Device::kCuda
                                : options.device == "reference" ? sluice::Device::kReference
                                                                : sluice::Device::kCpu;
  const int process = device == sluice::Device::kCuda ? place_on_machine(world()) : 0;
  return api::make_backend(
      device, options.dtype == "bf16" ? sluice::DType::kBF16 : sluice::DType::kF32, process);
}

Model load_model(const std::shared_ptr<const Checkpoint>& checkpoint, const CommonOptions& options,
                 RankPart part) {
  ProgressBar bar("loading", options.quiet);
  Model model(checkpoint, make_backend(options),
              {.context = options.context,
               .progress = [&](double done) { bar.update(done, ""); },
               .weights = weight_type_named(options.weights),
               .part = std::move(part)});
  if (model.n_other_weights() > 0 && !options.quiet)
    say("sluice: {} of {} matrices have a width that blocks of {} do not divide; they are in "
        "blocks "
        "of q8_0, or plain\n",
        model.n_other_weights(), model.n_weights(), options.weights);
  return model;
}

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;
  if (std::filesystem::equivalent(a, b, ignored)) return true;
  // Empty for a pipe and for memory behind /dev/fd, which have no name.
  const auto real = std::filesystem::weakly_canonical(a, ignored);
  return !real.empty() && real == std::filesystem::weakly_canonical(b, ignored);
}

bool lies_in(const std::filesystem::path& file, const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(file, ignored).parent_path() ==
         std::filesystem::weakly_canonical(folder, ignored);
}

namespace {

// Whether it has the name of what is read of a model's folder.
bool is_named_as_of_model(const std::filesystem::path& file) {
  std::error_code ignored;
  const std::string name = std::filesystem::weakly_canonical(file, ignored).filename().string();
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name == "config.json" || name == "generation_config.json" || name == "tokenizer.json" ||
         name == "tokenizer_config.json" || name == "chat_template.jinja";
}

}  // namespace

void check_output(const std::string& file) {
  if (world().rank() > 0) return;
  check_writable(file);
  outlive_lost_output();
}

void check_outputs(const CommonOptions& options, const std::vector<std::string>& inputs,
                   const std::string& output) {
  std::vector<std::string> taken = inputs;
  taken.push_back(options.model);
  for (const std::string& file : {output, options.json, options.html}) {
    if (file.empty()) continue;
    for (const std::string& other : taken)
      if (!other.empty() && same_file(file, other))
        throw CLI::ValidationError(file + " is in use already and would be overwritten");
    if (lies_in(file, options.model) && is_named_as_of_model(file))
      throw CLI::ValidationError(file + " is among the model's own files");
    check_output(file);
    taken.push_back(file);
  }
}

void write_outputs(const nlohmann::json& results, const CommonOptions& options) {
  if (world().rank() > 0) return;
  if (!options.json.empty()) write_json(results, options.json);
  if (!options.html.empty()) write_page(results, options.html, options.command_line);
}

void check_read_again(const std::string& text) {
  std::error_code ignored;
  const auto status = std::filesystem::status(text, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_directory(status))
    throw Error(
        path_label(text) + ": is a pipe or a device, and a text is read more than once here",
        "write it to a file first");
}

CLI::Validator whole_number() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size())
          return text + " given, expected a whole number below 2^64";
        text = std::to_string(value);  // 010 is ten
        return "";
      },
      "");
}

std::string read_prompt_file(const std::string& path) {
  std::string text = read_text_file(path, size_t{64} << 20);
  check_text(text, path);
  return text;
}

}  // namespace sluice::impl::cli
