// sluice tokenize: the tokens of a text.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options/options.h"
#include "cli/options/streams.h"
#include "cli/terminal/print.h"
#include "io/write_file.h"
#include "model/checkpoint.h"

namespace sluice::impl::cli {
namespace {

struct TokenizeFlags {
  CommonOptions common;
  std::string text, file;
  bool count = false, no_special = false;
};

std::string line_of(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void run_tokenize(const TokenizeFlags& flags, bool has_text, bool has_file) {
  if (has_text && has_file) throw CLI::ValidationError("give either -p or -f, not both");
  const std::string text = has_text   ? flags.text
                           : has_file ? read_prompt_file(flags.file)
                                      : piped_text("text");
  check_outputs(flags.common, {flags.file});
  const auto checkpoint = open_checkpoint(flags.common.model);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  const std::vector<int32_t> ids = tokenizer->encode(text, /*add_special=*/!flags.no_special);
  if (flags.count)
    print("{}\n", ids.size());
  else
    for (const int32_t id : ids) print("{:7}  {}\n", id, line_of(tokenizer->token_of(id)));
  if (flags.common.json.empty()) return;
  nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
  for (const int32_t id : ids)
    tokens.push_back(
        {{"id", id}, {"piece", tokenizer->token_of(id)}, {"special", tokenizer->is_special(id)}});
  write_file(flags.common.json,
             line_of({{"n_tokens", ids.size()}, {"tokens", std::move(tokens)}}) + "\n");
}

}  // namespace

Run add_tokenize(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "tokenize",
      "The tokens of a text: a line for each, with its id and its piece as the vocabulary spells\n"
      "it. Without -p and -f the text is read from a pipe, less a line end behind it.\n"
      "\n"
      "  sluice tokenize -m MODEL -p \"The sea was\"\n"
      "  sluice tokenize -m MODEL -f text.txt --count\n"
      "  echo \"The sea was\" | sluice tokenize -m MODEL --json -");
  auto flags = std::make_shared<TokenizeFlags>();
  command
      ->add_option("-m,--model", flags->common.model, "Hugging Face model folder, or a .gguf file")
      ->required();
  CLI::Option* text = command->add_option("-p,--prompt", flags->text, "The text");
  CLI::Option* file = command->add_option("-f,--file", flags->file, "File that holds the text");
  command->add_flag("--count", flags->count, "Print their number alone");
  command->add_flag("--no-special", flags->no_special,
                    "Without the tokens that the tokenizer puts around a text");
  command->add_option("--json", flags->common.json,
                      "Also write them to this file; - for stdout alone");
  return [flags, text, file](const std::string&) {
    run_tokenize(*flags, text->count() > 0, file->count() > 0);
  };
}

}  // namespace sluice::impl::cli
