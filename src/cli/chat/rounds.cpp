#include "cli/chat/rounds.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/terminal/line_reader.h"
#include "cli/terminal/nearest.h"
#include "cli/terminal/print.h"
#include "cli/terminal/say.h"
#include "cli/terminal/visible_text.h"
#include "core/quote.h"
#include "eval/compare/attention_work.h"
#include "eval/runs/generate_results.h"
#include "io/write_file.h"

namespace sluice::impl::cli {
namespace {

constexpr const char* kCommands =
    "/reset      forget the conversation\n"
    "/save FILE  write it to a file, as JSON\n"
    "/help       this list\n"
    "/quit       end, as Ctrl-D does\n"
    "Ctrl-C stops an answer.\n";

std::string role_name(ChatRole role) {
  return role == ChatRole::kSystem ? "system" : role == ChatRole::kUser ? "user" : "assistant";
}

void say_dim(const std::string& text) {
  const bool dim = isatty(STDERR_FILENO) == 1;
  say("{}{}{}\n", dim ? "\033[2m" : "", text, dim ? "\033[0m" : "");
}

void say_error(const Error& error) {
  say("sluice: {}{}\n", error.what(),
      error.hint().empty() ? "" : fmt::format(" (hint: {})", error.hint()));
}

}  // namespace

ChatRounds::ChatRounds(ChatSetup setup)
    : setup_(std::move(setup)),
      terminal_(isatty(STDIN_FILENO) == 1),
      conversation_(setup_.model, setup_.tokenizer,
                    {.style = *setup_.chat.style,
                     .system = setup_.chat.system,
                     .plan = setup_.generate.plan}) {
  reset();
}

void ChatRounds::reset() {
  conversation_.reset();
  if (setup_.audit.every == 0) return;
  audit_.emplace(setup_.model, setup_.audit, [this](const AuditRecord& record) {
    say("\nsluice: {}\n", tightened_text(record, *setup_.audit.max_kl));
  });
}

void ChatRounds::run() {
  std::optional<InterruptMark> mark;
  if (terminal_) mark.emplace();
  LineReader reader;
  std::string line;
  for (;;) {
    InterruptMark::clear();  // before the prompt shows: what is typed after it counts
    if (terminal_) say("> ");
    switch (reader.read(line)) {
      case LineReader::Event::kEnd:
        if (terminal_) say("\n");
        return;
      case LineReader::Event::kInterrupted:
        say("\n(Ctrl-D or /quit ends)\n");
        continue;
      case LineReader::Event::kLine:
        break;
    }
    try {
      if (take_line(line) == Next::kQuit) return;
    } catch (const Error& error) {
      if (!terminal_) throw;
      say_error(error);
    }
  }
}

ChatRounds::Next ChatRounds::take_line(const std::string& line) {
  if (line.find_first_not_of(" \t") == std::string::npos) return Next::kGoOn;
  if (const auto next = take_command(line)) return *next;
  answer(line);
  return Next::kGoOn;
}

std::optional<ChatRounds::Next> ChatRounds::take_command(const std::string& line) {
  if (!line.starts_with('/')) return std::nullopt;
  const std::string word = line.substr(0, line.find(' '));
  const bool is_name = word.size() > 1 && std::all_of(word.begin() + 1, word.end(),
                                                      [](char c) { return c >= 'a' && c <= 'z'; });
  if (!is_name) return std::nullopt;
  if (word == "/quit") return Next::kQuit;
  if (word == "/help") {
    say("{}", kCommands);
  } else if (word == "/reset") {
    reset();
    say_dim("the conversation is forgotten");
  } else if (word == "/save") {
    const size_t name = line.find_first_not_of(' ', word.size());
    if (name == std::string::npos) throw Error("/save needs the name of a file", "/save chat.json");
    save(line.substr(name));
  } else {
    const std::vector<std::string> names{"/reset", "/save", "/help", "/quit"};
    const std::string nearest = nearest_name(word, names);
    throw Error("there is no command " + quote(word),
                nearest.empty() ? "/help lists them" : "did you mean " + nearest + "?");
  }
  return Next::kGoOn;
}

void ChatRounds::answer(const std::string& message) {
  GenerateOptions options = setup_.generate;
  options.go_on = [](int32_t) { return !InterruptMark::is_set(); };
  options.cancelled = [] { return InterruptMark::is_set(); };
  if (audit_)
    options.step = [this](std::span<const int32_t> tokens, KvCache& cache, const Tensor& scores) {
      audit_->step(tokens, cache, scores);
    };
  bool begun = false;  // formats without a line end before the answer let it begin with a space
  const GenerateResult result = conversation_.answer(message, options, [&](std::string_view text) {
    if (!begun) text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    begun = begun || !text.empty();
    print_model_text(text);
  });
  if (audit_) audit_->end_answer();
  print("\n");
  std::fflush(stdout);
  if (result.tokens.empty() && result.end == GenerateResult::End::kEos)
    say("sluice: the model ended at once (hint: {})\n", no_answer_hint(setup_.chat));
  if (result.end == GenerateResult::End::kContextFull)
    say("sluice: the context of {} tokens is full (hint: /reset begins anew, -c N has room for "
        "more)\n",
        setup_.model.context());
  say_figures(result);
}

void ChatRounds::say_figures(const GenerateResult& result) const {
  std::string text =
      fmt::format("{} tokens read, {} answered at {:.1f} tokens/s{}", result.n_prompt,
                  result.tokens.size(), decode_rate(result),
                  result.end == GenerateResult::End::kCallback ? ", stopped"
                  : result.end == GenerateResult::End::kLength ? ", ended by --predict"
                                                               : "");
  text +=
      fmt::format("; {} of {} tokens of context", conversation_.n_tokens(), setup_.model.context());
  if (setup_.accelerated && setup_.model.spec().causal) {
    AttentionWork work;
    work.add(conversation_.cache(), setup_.model.spec());
    text += fmt::format("; {:.0f}% of keys read", 100 * work.keys_read_fraction());
  }
  if (audit_) text += "; " + audit_text(*audit_);
  say_dim(text);
}

void ChatRounds::save(const std::string& path) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : conversation_.messages())
    list.push_back({{"role", role_name(message.role)}, {"content", message.text}});
  write_file(path, nlohmann::ordered_json{{"messages", std::move(list)}}.dump(
                       1, ' ', false, nlohmann::json::error_handler_t::replace) +
                       "\n");
  say_dim("written to " + path_label(path));
}

}  // namespace sluice::impl::cli
