#include "cli/generate_batch.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/split.h"
#include "cli/terminal/print.h"
#include "cli/terminal/say.h"
#include "core/quote.h"
#include "eval/plan_in_use.h"
#include "eval/runs/generate_results.h"
#include "io/json/parse.h"
#include "ranks/world.h"

namespace sluice::impl::cli {
namespace {

constexpr size_t kMostLineValues = 4096;  // other keys of a line are left alone

PromptLine parse_line(std::string_view line, const std::string& label) {
  const nlohmann::json object =
      parse_json(line, label, {.bytes = line.size(), .values = kMostLineValues});
  const char* hint = "a line is {\"prompt\": \"...\"}, with \"id\": \"...\" if it has a name";
  if (!object.is_object()) throw Error(label + ": expected a JSON object", hint);
  const auto text_of = [&](const char* key) -> std::optional<std::string> {
    const auto found = object.find(key);
    if (found == object.end()) return std::nullopt;
    if (!found->is_string()) throw Error(label + ": " + key + ": expected a string", hint);
    return found->get<std::string>();
  };
  const auto prompt = text_of("prompt");
  if (!prompt) throw Error(label + ": there is no prompt", hint);
  return {.text = *prompt, .id = text_of("id")};
}

void print_line(int64_t index, const GeneratedBatch::Text& text) {
  nlohmann::ordered_json line = {{"index", index}};
  if (text.id) line["id"] = *text.id;
  const GenerateResult& result = text.answer.result;
  if (text.answer.error) {
    line["error"] = text.answer.error->what();
  } else {
    line["text"] = text.answer.text;
    line["n_prompt_tokens"] = result.n_prompt;
    line["n_tokens"] = result.tokens.size();
    line["end"] = end_name(result.end);
  }
  print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::fflush(stdout);
}

// Prints answers as soon as those before them are printed.
class InOrder {
 public:
  explicit InOrder(std::vector<GeneratedBatch::Text>& texts) : texts_(texts), done_(texts.size()) {}
  void take(int64_t index, BatchAnswer answer) {
    texts_[static_cast<size_t>(index)].answer = std::move(answer);
    done_[static_cast<size_t>(index)] = true;
    for (; next_ < texts_.size() && done_[next_]; ++next_)
      print_line(static_cast<int64_t>(next_), texts_[next_]);
  }

 private:
  std::vector<GeneratedBatch::Text>& texts_;
  std::vector<bool> done_;
  size_t next_ = 0;
};

}  // namespace

std::vector<PromptLine> read_prompt_lines(const std::string& path) {
  const std::string text = read_prompt_file(path);
  std::vector<PromptLine> lines;
  int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    lines.push_back(parse_line(line, fmt::format("{}: line {}", path_label(path), number)));
  }
  if (lines.empty())
    throw Error(path_label(path) + ": there are no prompts",
                "one JSON object to a line: {\"prompt\": \"...\"}");
  return lines;
}

void check_batch_flags(const CommonOptions& common, bool audited) {
  if (audited) throw CLI::ValidationError("--audit is for one prompt, leave it out for several");
  if (!common.html.empty())
    throw CLI::ValidationError("--html shows one text, give --json for several prompts");
}

void run_batch(BatchCommand command, Model& model) {
  const std::optional<PlanFile>& plan = command.acceleration.plan;
  if (!command.choice.all_exact() || plan)
    command.options.plan = prepared_plans(model, command.acceleration).front();
  std::vector<GeneratedBatch::Text> texts;
  std::vector<BatchPrompt> prompts;
  int64_t n_dense = 0;
  command.chat.end_answers(command.tokenizer, command.options);
  for (PromptLine& line : command.lines) {
    bool dense = false;
    if (plan && !command.always) {
      const auto n_prompt = std::ssize(command.chat.tokens_of(command.tokenizer, line.text));
      dense = !why_dense(*plan, n_prompt, command.options.n_predict).empty();
    }
    n_dense += dense ? 1 : 0;
    texts.push_back(
        {.prompt = std::move(line.text), .id = std::move(line.id), .dense = dense, .answer = {}});
  }
  for (const GeneratedBatch::Text& text : texts)
    prompts.push_back({.text = text.prompt,
                       .dense = text.dense,
                       .tokens = command.chat.style
                                     ? command.chat.tokens_of(command.tokenizer, text.prompt)
                                     : std::vector<int32_t>()});
  InOrder order(texts);
  const auto start = std::chrono::steady_clock::now();
  generate_batch(model, command.tokenizer, prompts, command.options, command.n_live,
                 {.token = {}, .done = [&](int64_t index, BatchAnswer answer) {
                    order.take(index, std::move(answer));
                  }});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const GeneratedBatch batch{.options = command.options,
                             .choice = command.choice,
                             .n_live = command.n_live,
                             .texts = texts,
                             .seconds = seconds};
  const int64_t n_tokens = n_generated(texts);
  const auto n_failed =
      std::count_if(texts.begin(), texts.end(),
                    [](const GeneratedBatch::Text& text) { return text.answer.error.has_value(); });
  if (!command.common.quiet || n_failed == 0)
    say("{} prompts, at most {} at a time; {} tokens in {:.2f} s, {:.1f} tokens/s; {}\n",
        texts.size(), command.n_live, n_tokens, seconds,
        seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0.0,
        plan ? fmt::format("plan {} for {}, dense for {}", command.choice.file,
                           std::ssize(texts) - n_dense, n_dense)
             : "attention " + attention_text(command.choice.attention, model.plan_shape()));
  say_ranks(model, command.common.quiet);
  const Acceleration& acceleration = command.acceleration;
  warn_of_same_text(acceleration.bases);
  int64_t longest = 0;  // of those by the plan
  for (const GeneratedBatch::Text& text : texts)
    if (!text.dense)
      longest =
          std::max(longest, text.answer.result.n_prompt + std::ssize(text.answer.result.tokens));
  note_other_use(acceleration, model, longest);
  if (command.common.wants_results() && world().rank() == 0) {
    nlohmann::json results =
        batch_results({.command_line = command.common.command_line,
                       .checkpoint = command.checkpoint,
                       .model = model,
                       .model_sha256 = acceleration.model_sha256,
                       .bases = acceleration.bases ? &*acceleration.bases : nullptr,
                       .n_ranks = world().size()},
                      batch);
    if (plan) results["settings"]["plan"] = command.choice.file;
    results["settings"].update(describe_chat(command.chat));
    write_outputs(results, command.common);
  }
  if (n_failed > 0)
    throw Error(fmt::format("{} of {} prompts failed", n_failed, texts.size()),
                "their lines say why");
}

}  // namespace sluice::impl::cli
