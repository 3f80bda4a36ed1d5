// sluice chat: a conversation with an instruct model.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/chat/rounds.h"
#include "cli/commands.h"
#include "cli/options/attention_options.h"
#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "cli/options/sampler_options.h"
#include "cli/terminal/say.h"
#include "core/quote.h"
#include "eval/plan_in_use.h"

namespace sluice::impl::cli {
namespace {

// The cache has room for the whole context from the start.
constexpr int64_t kDefaultContext = 4096;
constexpr int64_t kDefaultAudit = 8;

struct ChatCommandFlags : CommonOptions {
  ChatFlags chat;
  GenerateOptions generate = {.n_predict = 512};
  std::string plan;
  AttentionFlags attention;
  LinearFlags linear;
  AuditFlags audit = {.every = kDefaultAudit};
};

void run_chat(ChatCommandFlags flags, bool audit_asked) {
  const auto attention = attention_choices(flags.attention);
  const auto linear = linear_choices(flags.linear, flags.attention.joint);
  const bool accelerated = !attention.empty() || !linear.empty() || !flags.plan.empty();
  if (audit_asked) check_audited(flags.audit, accelerated);
  const auto checkpoint = open_checkpoint(flags.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const ChatChoice chat = choose_chat(flags.chat, *checkpoint, *tokenizer);
  if (!chat.style)
    throw Error(
        path_label(flags.model) + (chat.has_template ? ": its chat template is of no known format"
                                                     : ": has no chat template"),
        "--chat-format NAME: " + chat_format_names() + "; sluice generate continues a text");
  const Acceleration acceleration = read_acceleration(
      {.plan = flags.plan, .attention = attention, .linear = linear, .linear_flags = flags.linear},
      *checkpoint, "");
  if (acceleration.plan) check_generates(acceleration.plan->plan, path_label(flags.plan));
  if (flags.context == 0)
    flags.context = std::min(checkpoint->spec().max_positions, kDefaultContext);
  Model model = load_model(checkpoint, flags);
  ChatSetup setup{.model = model,
                  .tokenizer = *tokenizer,
                  .chat = chat,
                  .generate = flags.generate,
                  .audit = {},
                  .accelerated = accelerated};
  if (accelerated) {
    setup.generate.plan = prepared_plans(model, acceleration).front();
    check_generates(setup.generate.plan, "--attention");
    setup.audit = audit_options(flags.audit, acceleration, setup.generate.plan.attention);
    setup.audit.seed = flags.generate.sampler.seed;
    setup.generate.plan.attention.audited = setup.audit.every > 0;
  }
  if (!flags.quiet)
    say("sluice: chat format {}{}, {} tokens of context{}\n", chat.name(),
        chat.from_template ? ", the model's own" : "", model.context(),
        isatty(STDIN_FILENO) == 1 ? "; /help lists commands, Ctrl-D ends" : "");
  ChatRounds(std::move(setup)).run();
}

}  // namespace

Run add_chat(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "chat",
      "A conversation with an instruct model: a line is a message, and the answer is printed as\n"
      "it comes. Earlier rounds stay in the cache. Ctrl-C stops an answer, Ctrl-D ends; /help\n"
      "lists commands. Lines may come by a pipe.\n"
      "\n"
      "  sluice chat -m MODEL\n"
      "  sluice chat -m MODEL --system \"Answer briefly.\" --temperature 0.7\n"
      "  sluice chat -m MODEL --plan plan.json\n"
      "\n"
      "A plan is followed from the first token on, and its loss is measured (--audit).");
  auto flags = std::make_shared<ChatCommandFlags>();
  add_model_options(*command, *flags);
  command->get_option("--context")
      ->description("Tokens of context; 0 takes 4096, or the model's where that is less");
  add_chat_options(*command, flags->chat);
  add_sampler_options(*command, flags->generate);
  add_plan_option(*command, flags->plan);
  add_attention_options(*command, flags->attention, /*lists=*/false);
  add_linear_options(*command, flags->linear, /*lists=*/false);
  add_audit_options(*command, flags->audit);
  return [flags, audit = command->get_option("--audit")](const std::string& command_line) {
    flags->command_line = command_line;
    run_chat(*flags, audit->count() > 0);
  };
}

}  // namespace sluice::impl::cli
