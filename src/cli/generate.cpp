// sluice generate: continue a prompt.

#include "model/generate.h"

#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/generate_batch.h"
#include "cli/options/attention_options.h"
#include "cli/options/audit_option.h"
#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "cli/terminal/say.h"
#include "core/quote.h"
#include "eval/plan_in_use.h"
#include "eval/runs/generate_results.h"

namespace sluice::impl::cli {
namespace {

struct GenerateFlags : CommonOptions {
  std::string prompt;
  std::string file;
  GenerateOptions generate;
  std::string plan;
  bool always = false;
  AttentionFlags attention;
  LinearFlags linear;
  AuditFlags audit;
  int64_t batch = 0;  // 0: not given
};

std::vector<UniformAttention> attention_of(const AttentionFlags& flags) {
  auto choices = attention_choices(flags);
  if (!choices.empty() && choices.front().mode == AttentionMode::kPaper)
    throw CLI::ValidationError(
        "--attention paper shows tokens what follows them and cannot generate, give keys or copy");
  return choices;
}

std::string linear_note(const UniformLinear& choice, const LinearWork& work) {
  if (choice.kind == LinearKind::kDense) return "";
  std::string note = "; linear " + linear_text(choice);
  if (const auto fast = work.fast_path_fraction())
    note += fmt::format(", {:.1f}% of tokens fast", 100 * *fast);
  return note + fmt::format(", {:.1f}% of the blocks' linear weights read, counted token by token",
                            100 * work.weight_bytes_fraction());
}

// What a prompt is continued with.
struct Loaded {
  const Checkpoint& checkpoint;
  const Tokenizer& tokenizer;
  const Acceleration& acceleration;
  UniformChoice choice;
};

void run_one(GenerateFlags flags, const std::string& prompt, Loaded loaded, Model& model) {
  const Acceleration& acceleration = loaded.acceleration;
  const std::optional<PlanFile>& plan = acceleration.plan;
  UniformChoice& choice = loaded.choice;
  std::string ran;  // of plan and dense, which and why
  if (plan) {
    const auto n_prompt = std::ssize(loaded.tokenizer.encode(prompt, /*add_special=*/true));
    ran = fmt::format("plan {}", choice.file);
    const std::string why =
        flags.always ? "" : why_dense(*plan, n_prompt, flags.generate.n_predict);
    if (!why.empty()) {
      const bool dense = plan->plan.attention.all_dense() && plan->plan.linear.all_dense();
      ran = fmt::format("dense: {} {}{}", choice.file, why, dense ? "" : " (--always runs it)");
      choice = {};
    }
  }
  if (!choice.all_dense()) flags.generate.plan = prepared_plans(model, acceleration).front();
  AuditOptions audit_wanted =
      audit_options(flags.audit, acceleration, flags.generate.plan.attention);
  audit_wanted.seed = flags.generate.sampler.seed;
  std::optional<AuditedSteps> audit;
  if (audit_wanted.every > 0 && !choice.all_dense()) {
    audit.emplace(model, audit_wanted, [&](const AuditRecord& record) {
      say("\nsluice: {}\n", tightened_text(record, *audit_wanted.max_kl));
    });
    run_audited(*audit, flags.generate);
  }
  std::string answer;
  bool begun = false;
  const GenerateResult result =
      generate(model, loaded.tokenizer, prompt, flags.generate, [&](std::string_view text) {
        if (!std::exchange(begun, true) && !flags.quiet) fmt::print("{}", prompt);
        answer += text;
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
  fmt::print("\n");
  std::fflush(stdout);
  if (!flags.quiet)
    say("prompt {} tokens, {:.1f} tokens/s; answer {} tokens, {:.1f} tokens/s; ended by {}; "
        "{}{}\n",
        result.n_prompt, prefill_rate(result), result.tokens.size(), decode_rate(result),
        end_name(result.end),
        plan ? ran : "attention " + attention_text(choice.attention, model.plan_shape()),
        plan ? "" : linear_note(choice.linear, result.linear));
  if (audit) {
    audit->finish_prompt();
    say("{}\n", audit_text(*audit));
  }
  warn_of_same_text(acceleration.bases);
  const int64_t n_tokens = result.n_prompt + std::ssize(result.tokens);
  note_other_use(acceleration, model, choice.file.empty() ? 0 : n_tokens);
  if (!flags.wants_results()) return;
  nlohmann::json results =
      generate_results({.command_line = flags.command_line,
                        .checkpoint = loaded.checkpoint,
                        .model = model,
                        .model_sha256 = acceleration.model_sha256,
                        .bases = acceleration.bases ? &*acceleration.bases : nullptr},
                       {.prompt = prompt,
                        .text = answer,
                        .options = flags.generate,
                        .choice = choice,
                        .result = result,
                        .audit = audit ? &*audit : nullptr});
  if (plan) {
    results["settings"]["plan"] = acceleration.choices.front().file;
    results["settings"]["ran"] = choice.file.empty() ? "dense" : "plan";
  }
  write_outputs(results, flags);
}

void run_generate(GenerateFlags flags, bool has_prompt, bool has_file) {
  if (has_prompt == has_file)
    throw CLI::ValidationError(has_prompt ? "give either -p or -f, not both"
                                          : "no prompt: give one with -p, or a file with -f");
  const std::vector<UniformAttention> attention = attention_of(flags.attention);
  const std::vector<UniformLinear> linear = linear_choices(flags.linear, flags.attention.joint);
  check_audited(flags.audit, !attention.empty() || !linear.empty() || !flags.plan.empty());
  const bool several = has_file && (flags.batch > 0 || flags.file.ends_with(".jsonl"));
  if (several) check_batch_flags(flags, flags.audit.every > 0);
  if (!several && flags.batch > 0)
    throw CLI::ValidationError("--batch is for a file of prompts, give one with -f");
  std::string prompt;
  std::vector<PromptLine> lines;
  if (several)
    lines = read_prompt_lines(flags.file);
  else
    prompt = has_file ? read_prompt_file(flags.file) : flags.prompt;
  check_outputs(flags, {flags.file, flags.linear.bases, flags.plan});
  const auto checkpoint = open_checkpoint(flags.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const Acceleration acceleration = read_acceleration(
      {.plan = flags.plan, .attention = attention, .linear = linear, .linear_flags = flags.linear},
      *checkpoint, flags.file);
  const std::optional<PlanFile>& plan = acceleration.plan;
  if (plan) check_generates(plan->plan, path_label(flags.plan));
  Model model = load_model(checkpoint, flags);
  UniformChoice choice;
  if (!acceleration.choices.empty()) choice = acceleration.choices.front();
  if (!several)
    return run_one(std::move(flags), prompt,
                   {.checkpoint = *checkpoint,
                    .tokenizer = *tokenizer,
                    .acceleration = acceleration,
                    .choice = std::move(choice)},
                   model);
  run_batch({.common = flags,
             .checkpoint = *checkpoint,
             .tokenizer = *tokenizer,
             .acceleration = acceleration,
             .choice = choice,
             .always = flags.always,
             .n_live = flags.batch > 0 ? flags.batch : kDefaultBatch,
             .lines = std::move(lines),
             .options = flags.generate},
            model);
}

}  // namespace

Run add_generate(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "generate",
      "Continue a prompt, printed as it comes. The likeliest token is taken unless a\n"
      "temperature is given; the same seed gives the same text.\n"
      "\n"
      "  sluice generate -m MODEL -p \"The sea was\" -n 64\n"
      "  sluice generate -m MODEL -f prompt.txt --temperature 0.8 --top-p 0.95 --seed 7\n"
      "  sluice generate -m MODEL -f long.txt --attention keys --tau auto\n"
      "  sluice generate -m MODEL -f prompt.txt --linear gsi --bases bases.safetensors\n"
      "  sluice generate -m MODEL -f long.txt --plan plan.json --audit 128\n"
      "  sluice generate -m MODEL -f prompts.jsonl --batch 16\n"
      "\n"
      "Of several prompts, each line of the file is a JSON object: {\"prompt\": \"...\"}, and\n"
      "\"id\" where it has a name. They are continued together. For each, in their order, a\n"
      "line is printed: its index and id, the text, and why it ended, or an error.");
  auto flags = std::make_shared<GenerateFlags>();
  add_common_options(*command, *flags);
  CLI::Option* prompt = command->add_option("-p,--prompt", flags->prompt, "Text to continue");
  CLI::Option* file = command->add_option(
      "-f,--file", flags->file,
      "File that holds the prompt; with --batch or a name in .jsonl, several prompts");
  command
      ->add_option("--batch", flags->batch,
                   "Prompts of a file that are continued at one time; 16 for a file in .jsonl")
      ->check(CLI::Range(int64_t{1}, kMostBatch));
  GenerateOptions& generate = flags->generate;
  command->add_option("-n,--predict", generate.n_predict, "Tokens to generate at most")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  SamplerOptions& sampler = generate.sampler;
  command
      ->add_option("--temperature", sampler.temperature,
                   "0 takes the likeliest token; higher is more varied")
      ->check(number_between(0, 100, "0 to 100"))
      ->capture_default_str();
  command->add_option("--top-k", sampler.top_k, "Sample from the k likeliest; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  command
      ->add_option("--top-p", sampler.top_p,
                   "Sample from the likeliest that reach this probability together")
      ->check(number_between(std::numeric_limits<float>::min(), 1, "more than 0, up to 1"))
      ->capture_default_str();
  command
      ->add_option("--min-p", sampler.min_p,
                   "Drop tokens less likely than this share of the likeliest")
      ->check(number_between(0, 1, "0 to 1"))
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", sampler.repetition_penalty,
                   "More than 1 makes tokens already seen less likely")
      ->check(number_between(std::numeric_limits<float>::min(), 100, "more than 0, up to 100"))
      ->capture_default_str();
  command->add_option("--stop", generate.stop,
                      "End before this text appears; may be given several times");
  command->add_option("--seed", sampler.seed, "Seed of the random choices")
      ->check(whole_number())
      ->capture_default_str();
  command->add_flag("--ignore-eos", generate.ignore_eos, "Go on past the end token");
  add_auto_plan_options(*command, flags->plan, flags->always);
  add_attention_options(*command, flags->attention, /*lists=*/false);
  add_linear_options(*command, flags->linear, /*lists=*/false);
  add_audit_options(*command, flags->audit);
  return [flags, prompt, file](const std::string& command_line) {
    flags->command_line = command_line;
    run_generate(*flags, prompt->count() > 0, file->count() > 0);
  };
}

}  // namespace sluice::impl::cli
