// The rounds of sluice chat: lines in, answers out.

#pragma once

#include <optional>
#include <string>

#include "cli/options/audit_option.h"
#include "cli/options/chat_option.h"
#include "model/conversation.h"

namespace sluice::impl::cli {

struct ChatSetup {
  Model& model;
  const Tokenizer& tokenizer;
  ChatChoice chat;
  GenerateOptions generate;  // with the plan
  AuditOptions audit;        // every 0: none
  bool accelerated = false;
};

class ChatRounds {
 public:
  explicit ChatRounds(ChatSetup setup);

  // Until the input ends or /quit. On a terminal errors are said and the next line is read;
  // otherwise they are thrown.
  void run();

 private:
  enum class Next { kGoOn, kQuit };
  Next take_line(const std::string& line);
  // A line that begins with / and a word; nothing for others.
  std::optional<Next> take_command(const std::string& line);
  void answer(const std::string& message);
  void say_figures(const GenerateResult& result) const;
  void reset();
  void save(const std::string& path) const;

  ChatSetup setup_;
  bool terminal_;
  Conversation conversation_;
  std::optional<AuditedSteps> audit_;
};

}  // namespace sluice::impl::cli
