// sluice inspect: what a checkpoint is and what it needs, or what a plan does (inspect_plan.h).

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/inspect_plan.h"
#include "cli/options/options.h"
#include "cli/terminal/print.h"
#include "cli/terminal/visible_text.h"
#include "core/error.h"
#include "eval/results.h"
#include "eval/shell_line.h"

namespace sluice::impl::cli {
namespace {

struct InspectOptions {
  std::string model;
  std::string plan;
  std::string json;
  int64_t context = 0;
  std::string command_line;
};

std::string human_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string human_count(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.2f} B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f} M", value / 1e6);
  return fmt::format("{}", count);
}

struct Stored {
  int64_t n_tensors = 0, bytes = 0;
};

std::string positions_text(const ModelSpec& spec) {
  if (spec.position == PositionKind::kLearned) return "learned";
  const char* scaling = "";
  switch (spec.rotary.scaling.kind) {
    case RotaryScaling::Kind::kNone:
      break;
    case RotaryScaling::Kind::kLinear:
      scaling = ", linear scaling";
      break;
    case RotaryScaling::Kind::kDynamic:
      scaling = ", dynamic scaling";
      break;
    case RotaryScaling::Kind::kLlama3:
      scaling = ", llama3 scaling";
      break;
    case RotaryScaling::Kind::kYarn:
      scaling = ", YaRN scaling";
      break;
    case RotaryScaling::Kind::kLongRope:
      scaling = ", long-rope scaling";
      break;
  }
  return fmt::format("rotary on {} of {} dimensions, base {:g}{}", spec.rotary.dim, spec.head_dim,
                     spec.rotary.base, scaling);
}

std::string block_text(const ModelSpec& spec) {
  std::string text = spec.causal ? "causal, " : "encoder, ";
  switch (spec.block) {
    case BlockKind::kPreNorm:
      text += "pre-norm";
      break;
    case BlockKind::kParallel:
      text += "parallel attention and MLP";
      break;
    case BlockKind::kParallelNorms:
      text += "parallel attention and MLP, a norm each";
      break;
    case BlockKind::kPostNorm:
      text += "post-norm";
      break;
    case BlockKind::kPrePostNorm:
      text += "pre- and post-norms";
      break;
  }
  text += spec.norm == NormKind::kRms ? ", RMS norm" : ", layer norm";
  switch (spec.activation) {
    case Activation::kRelu:
      text += ", ReLU";
      break;
    case Activation::kSilu:
      text += ", SiLU";
      break;
    case Activation::kGeluErf:
      text += ", GELU";
      break;
    case Activation::kGeluTanh:
      text += ", GELU (tanh)";
      break;
    case Activation::kNone:
      break;
  }
  return text + (spec.gated ? ", gated" : "");
}

// Whether its attention can be made faster, and how to find out.
std::string conclusion_of(const ModelSpec& spec, const std::string& path) {
  if (!spec.causal)
    return fmt::format(
        "What the modes lose here: sluice eval {} -f TEXT --attention refine,keys,copy",
        shell_line({"-m", path}));
  return fmt::format(
      "What faster attention would save and lose here: sluice tune {} -f TEXT --max-kl 0.01 "
      "-o plan.json",
      shell_line({"-m", path}));
}

void run_inspect(const InspectOptions& options) {
  if (!options.json.empty()) check_output(options.json);
  const auto checkpoint = open_checkpoint(options.model);
  const ModelSpec& spec = checkpoint->spec();
  check_matrix_shapes(checkpoint->description, checkpoint->weights());
  std::map<std::string, Stored> stored;
  int64_t n_parameters = 0;
  for (const auto& [name, tensor] : checkpoint->weights().tensors()) {
    Stored& entry = stored[std::string(dtype_name(tensor.dtype))];
    ++entry.n_tensors;
    entry.bytes += static_cast<int64_t>(tensor.bytes.size());
    n_parameters += tensor.shape.numel();
  }
  const int64_t own = spec.default_context > 0 ? spec.default_context : spec.max_positions;
  const int64_t context = options.context > 0 ? options.context : own;
  const bool tied = checkpoint->description.names.head.empty() ||
                    checkpoint->description.names.head.front().weight ==
                        checkpoint->description.names.token_table;

  const auto line = [](const char* label, const std::string& text) {
    print("{:<14} {}\n", label, text);
  };
  line("model", checkpoint->path.string());
  line("format", checkpoint->format);
  line("family", spec.family);
  line("parameters", human_count(n_parameters));
  line("layers", fmt::format("{}", spec.n_layers));
  line("d_model",
       fmt::format(
           "{}, inner {}{}", spec.d_model, spec.d_inner,
           spec.d_embed == spec.d_model ? "" : fmt::format(", token table {}", spec.d_embed)));
  line("heads",
       fmt::format("{} of {}, {} key/value", spec.n_heads, spec.head_dim, spec.n_kv_heads));
  line("block", block_text(spec));
  line("positions", positions_text(spec));
  if (!spec.windows.empty())
    line("window", fmt::format("{} tokens in sliding layers",
                               *std::max_element(spec.windows.begin(), spec.windows.end())));
  line("context", fmt::format("{}", own));
  line("vocabulary", fmt::format("{}, head {}", spec.vocab,
                                 checkpoint->description.names.head.empty() ? "absent"
                                 : tied                                     ? "tied"
                                                                            : "of its own"));
  std::string tokenizer_text;
  nlohmann::json tokenizer_json;
  try {
    const auto tokenizer = open_tokenizer_of(*checkpoint);
    tokenizer_text = fmt::format("{}, {} tokens", tokenizer->kind(), tokenizer->vocab_size());
    const auto shown = [&](int32_t id) { return visible_text(tokenizer->token_of(id)); };
    if (tokenizer->bos()) tokenizer_text += ", bos " + shown(*tokenizer->bos());
    if (tokenizer->eos()) tokenizer_text += ", eos " + shown(*tokenizer->eos());
    tokenizer_json = {{"kind", tokenizer->kind()}, {"n_tokens", tokenizer->vocab_size()}};
  } catch (const Error& e) {
    tokenizer_text = std::string("none: ") + e.what();
  }
  line("tokenizer", tokenizer_text);
  for (const auto& [dtype, entry] : stored)
    line("stored",
         fmt::format("{} tensors in {}, {}", entry.n_tensors, dtype, human_bytes(entry.bytes)));
  for (const DType dtype : {DType::kF32, DType::kBF16})
    line(dtype == DType::kF32 ? "memory f32" : "memory bf16",
         fmt::format("{} weights + {} key/value cache at {} tokens",
                     human_bytes(packed_bytes(checkpoint->description, dtype)),
                     human_bytes(KvCache::bytes_needed(spec, dtype, 1, context)), context));
  line("cache int8", fmt::format("{} at {} tokens with --cache int8",
                                 human_bytes(KvCache::bytes_needed(spec, DType::kBF16, 1, context,
                                                                   CacheKind::kInt8)),
                                 context));
  if (const int64_t bytes =
          packed_bytes_as_stored(checkpoint->description, checkpoint->weights(), DType::kBF16);
      bytes != packed_bytes(checkpoint->description, DType::kBF16))
    line("memory",
         fmt::format("{} weights in their stored blocks, others in bf16", human_bytes(bytes)));
  print("{}\n", conclusion_of(spec, options.model));
  if (options.json.empty()) return;
  const auto backend = make_cpu_backend(DType::kF32);
  nlohmann::json results = results_header("inspect", options.command_line, *backend);
  results["model"] = describe_model(*checkpoint, *backend);
  results["model"].erase("dtype");
  results["model"]["format"] = checkpoint->format;
  results["model"]["n_parameters"] = n_parameters;
  results["model"]["max_positions"] = spec.max_positions;
  results["model"]["tokenizer"] = tokenizer_json;
  for (const auto& [dtype, entry] : stored)
    results["model"]["stored"][dtype] = {{"n_tensors", entry.n_tensors}, {"bytes", entry.bytes}};
  write_json(results, options.json);
}

}  // namespace

Run add_inspect(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "inspect",
      "What a checkpoint is: family, sizes, dtypes, tokenizer, and the memory it needs.\n"
      "Opens the files without loading the weights. Or what a plan was made for, and what it\n"
      "does in every layer and head.\n"
      "\n"
      "  sluice inspect -m MODEL\n"
      "  sluice inspect PLAN.json");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("plan", options->plan, "A plan, instead of a model")->type_name("PLAN.json");
  command->add_option("-m,--model", options->model, "Hugging Face model folder, or a .gguf file");
  command->add_option("-c,--context", options->context, "Context to estimate memory for")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command->add_option("--json", options->json, "Also write the results to this file");
  return [options](const std::string& command_line) {
    if (options->model.empty() == options->plan.empty())
      throw CLI::ValidationError("inspect takes a model with --model, or a plan, one of the two");
    if (options->plan.empty()) {
      options->command_line = command_line;
      return run_inspect(*options);
    }
    if (options->context > 0)
      throw CLI::ValidationError("--context has an effect on a model alone");
    run_inspect_plan({options->plan, options->json, command_line});
  };
}

}  // namespace sluice::impl::cli
