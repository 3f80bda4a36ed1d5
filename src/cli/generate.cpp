// sluice generate: continue a prompt.

#include "model/generate.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/generate_batch.h"
#include "cli/options/attention_options.h"
#include "cli/options/audit_option.h"
#include "cli/options/chat_option.h"
#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "cli/options/sampler_options.h"
#include "cli/options/streams.h"
#include "cli/split.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "cli/terminal/visible_text.h"
#include "core/quote.h"
#include "eval/plan_in_use.h"
#include "eval/runs/generate_results.h"
#include "ranks/world.h"

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
  ChatFlags chat;
  int64_t batch = 0;  // 0: not given
  std::string split;
  bool no_echo = false;
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
  const ChatChoice& chat;
  UniformChoice choice;
};

void run_one(GenerateFlags flags, const std::string& prompt, Loaded loaded, Model& model) {
  const Acceleration& acceleration = loaded.acceleration;
  const std::optional<PlanFile>& plan = acceleration.plan;
  UniformChoice& choice = loaded.choice;
  std::string ran;  // of plan and dense, which and why
  std::vector<int32_t> tokens = loaded.chat.tokens_of(loaded.tokenizer, prompt);
  loaded.chat.end_answers(loaded.tokenizer, flags.generate);
  if (plan) {
    const auto n_prompt = std::ssize(tokens);
    ran = fmt::format("plan {}", choice.file);
    const std::string why =
        flags.always ? "" : why_dense(*plan, n_prompt, flags.generate.n_predict);
    if (!why.empty()) {
      const bool dense = plan->plan.attention.all_exact() && plan->plan.linear.all_dense();
      ran = fmt::format("dense: {} {}{}", choice.file, why, dense ? "" : " (--always runs it)");
      choice = {};
    }
  }
  if (!choice.all_exact()) flags.generate.plan = prepared_plans(model, acceleration).front();
  AuditOptions audit_wanted =
      audit_options(flags.audit, acceleration, flags.generate.plan.attention);
  audit_wanted.seed = flags.generate.sampler.seed;
  std::optional<AuditedSteps> audit;
  if (audit_wanted.every > 0 && !choice.all_exact()) {
    audit.emplace(model, audit_wanted, [&](const AuditRecord& record) {
      say("\nsluice: {}\n", tightened_text(record, *audit_wanted.max_kl));
    });
    run_audited(*audit, flags.generate);
  }
  ProgressBar bar("reading the prompt", flags.quiet);
  flags.generate.prompt_pass = [&bar, then = flags.generate.prompt_pass](
                                   std::span<const int32_t> all, int64_t first,
                                   const ConstTensor& hidden) {
    if (then) then(all, first, hidden);
    bar.update(static_cast<double>(first + hidden.rows()) / static_cast<double>(all.size()), "");
  };
  std::string answer;
  // An answer to a message is no continuation of it.
  bool echo = !flags.quiet && !flags.no_echo && !loaded.chat.style;
  GenerateResult result = generate(model, loaded.tokenizer, {.tokens = std::move(tokens)},
                                   flags.generate, [&](std::string_view text) {
                                     bar.make_room();
                                     if (std::exchange(echo, false)) print("{}", prompt);
                                     answer += text;
                                     print_model_text(text);
                                   });
  print("\n");
  std::fflush(stdout);
  combine(model, result);
  if (result.tokens.empty() && result.end == GenerateResult::End::kEos)
    say("sluice: the model ended at once (hint: {})\n", no_answer_hint(loaded.chat));
  say("prompt {} tokens, {:.1f} tokens/s; answer {} tokens, {:.1f} tokens/s; ended by {}; {}{}\n",
      result.n_prompt, prefill_rate(result), result.tokens.size(), decode_rate(result),
      end_name(result.end),
      plan ? ran : "attention " + attention_text(choice.attention, model.plan_shape()),
      plan ? "" : linear_note(choice.linear, result.linear));
  if (audit) {
    audit->finish_prompt();
    say("{}\n", audit_text(*audit));
  }
  say_ranks(model, flags.quiet);
  warn_of_same_text(acceleration.bases);
  const int64_t n_tokens = result.n_prompt + std::ssize(result.tokens);
  note_other_use(acceleration, model, choice.file.empty() ? 0 : n_tokens);
  // The first rank writes; others need not read the whole model for its digest.
  if (!flags.wants_results() || world().rank() > 0) return;
  nlohmann::json results =
      generate_results({.command_line = flags.command_line,
                        .checkpoint = loaded.checkpoint,
                        .model = model,
                        .model_sha256 = acceleration.model_sha256,
                        .bases = acceleration.bases ? &*acceleration.bases : nullptr,
                        .n_ranks = world().size()},
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
  results["settings"].update(describe_chat(loaded.chat));
  write_outputs(results, flags);
}

// Throws CLI::ValidationError for flags that do not go with a model divided over ranks.
void check_split(const GenerateFlags& flags) {
  const int n_ranks = world().size();
  if (n_ranks == 1 && !flags.split.empty())
    throw CLI::ValidationError(
        "--split divides a model over ranks, start some: mpirun -n 2 sluice generate ...");
  if (n_ranks > 1 && flags.audit.every > 0)
    throw CLI::ValidationError("--audit is for one process, leave it out under mpirun");
}

void run_generate(GenerateFlags flags, bool has_prompt, bool has_file) {
  if (has_prompt && has_file) throw CLI::ValidationError("give either -p or -f, not both");
  check_split(flags);
  if (!has_prompt && !has_file) flags.prompt = piped_text("prompt");
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
  const ChatChoice chat = choose_chat(flags.chat, *checkpoint, *tokenizer);
  if (const std::string note = chat_note(chat); !note.empty() && !flags.quiet)
    say("sluice: {}\n", note);
  Model model = load_model(checkpoint, flags, rank_part(world(), *checkpoint, flags, flags.split));
  check_ranks(model);
  UniformChoice choice;
  if (!acceleration.choices.empty()) choice = acceleration.choices.front();
  if (!several)
    return run_one(std::move(flags), prompt,
                   {.checkpoint = *checkpoint,
                    .tokenizer = *tokenizer,
                    .acceleration = acceleration,
                    .chat = chat,
                    .choice = std::move(choice)},
                   model);
  run_batch({.common = flags,
             .checkpoint = *checkpoint,
             .tokenizer = *tokenizer,
             .acceleration = acceleration,
             .chat = chat,
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
      "  echo \"What is a sluice?\" | sluice generate -m MODEL\n"
      "\n"
      "A prompt to a model with a chat template of a known format is a message to it, and the\n"
      "answer is printed alone. Without -p and -f the prompt is read from a pipe, less a line\n"
      "end behind it.\n"
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
      ->check(CLI::Range(int64_t{1}, kMostBatch).description(""))
      ->type_name("N");
  add_sampler_options(*command, flags->generate);
  command->add_flag("--no-echo", flags->no_echo, "Print the answer without the prompt before it");
  add_chat_options(*command, flags->chat);
  add_auto_plan_options(*command, flags->plan, flags->always);
  add_attention_options(*command, flags->attention, /*lists=*/false);
  add_linear_options(*command, flags->linear, /*lists=*/false);
  add_audit_options(*command, flags->audit);
  add_split_option(*command, flags->split);
  return [flags, prompt, file](const std::string& command_line) {
    flags->command_line = command_line;
    run_generate(*flags, prompt->count() > 0, file->count() > 0);
  };
}

}  // namespace sluice::impl::cli
