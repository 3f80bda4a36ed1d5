#include "cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/misspelt.h"
#include "cli/options/streams.h"
#include "cli/signals.h"
#include "cli/terminal/print.h"
#include "cli/terminal/say.h"
#include "core/error.h"
#include "core/quote.h"
#include "eval/shell_line.h"
#include "model/scores_error.h"
#include "ranks/world.h"
#include "sluice/version.h"

namespace sluice::impl::cli {
namespace {

constexpr const char* kDescription =
    "Sluice runs transformer language models and does only the work the input needs.\n"
    "\n"
    "  sluice demo                                   all of it on a small model that comes along\n"
    "  sluice inspect -m MODEL                       what a checkpoint is\n"
    "  sluice generate -m MODEL -p \"Once upon a\"     continue a text\n"
    "  sluice chat -m MODEL                          a conversation with an instruct model\n"
    "  sluice tokenize -m MODEL -p \"Once upon a\"     the tokens of a text\n"
    "  sluice eval -m MODEL -f TEXT -c 1024          perplexity on a text\n"
    "  sluice needle -m MODEL -f TEXT -c 4096        whether one sentence far back is found\n"
    "  sluice analyze -m MODEL -f TEXT               which tokens represent the others\n"
    "  sluice bench -m MODEL -f TEXT -c 512,2048     speed of prefill and decode\n"
    "  sluice calibrate -m MODEL -f TEXT --rank 64 -o BASES   directions activations lie near\n"
    "  sluice tune -m MODEL -f TEXT --max-kl 0.01 -o plan.json   the fastest plan that keeps it\n"
    "  sluice report results.json -o report.html     one page of what the others wrote\n"
    "  sluice help generate                          what a command does, and its options\n"
    "  sluice completion bash                        completion in a shell\n"
    "\n"
    "MODEL is a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a .gguf file.\n"
    "A file may be -, for standard input or output. mpirun -n N divides eval, tune, analyze,\n"
    "calibrate and generate over N processes.";

// One line, whatever a path or an argument holds.
int complain(const std::string& message, const std::string& hint, int code) {
  std::string line = message + (hint.empty() ? "" : " (hint: " + hint + ")");
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  say("sluice: {}\n", line);
  return code;
}

// A file that is opened must not become what is printed to. What goes to a closed output fails.
void take_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) == -1) {
      const int taken = open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
      if (taken != stream && taken >= 0) close(taken);
    }
}

// Commands whose work is divided over the processes that mpirun starts.
constexpr std::string_view kDividing[] = {"eval", "tune", "analyze", "calibrate", "generate"};

void check_divides(const std::string& command) {
  if (world().size() == 1 || std::ranges::count(kDividing, command) > 0) return;
  throw CLI::ValidationError(command,
                             "is not divided over several processes; eval, tune, analyze, "
                             "calibrate and generate are. Start it without mpirun");
}

// An empty value is most often a script's variable that was never set.
void check_not_empty(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    for (const std::string& value : option->results())
      if (value.empty() && !option->check_lname("separator") && !option->check_lname("prompt"))
        throw CLI::ValidationError(option->get_name(), "is empty");
}

// Refusals of scores name the model that was given.
void run_named(const CLI::App& command, const Run& action, const std::string& typed) {
  try {
    action(typed);
  } catch (const ScoresError& error) {
    const CLI::Option* model = command.get_option_no_throw("--model");
    if (model == nullptr || model->empty()) throw;
    throw Error(path_label(model->as<std::string>()) + ": " + error.what(), error.hint());
  }
}

// As typed, less the path of the program.
std::string command_line(int argc, char** argv) {
  std::vector<std::string> words{"sluice"};
  words.insert(words.end(), argv + 1, argv + argc);
  return shell_line(words);
}

// What a run came to: an exit status, and what there is to complain about, if anything.
struct Outcome {
  int code = 0;
  std::string message = "", hint = "";
};

Outcome run(int argc, char** argv) {
  CLI::App program(kDescription, "sluice");
  program.set_version_flag("--version", std::string("sluice ") + version());
  std::vector<std::pair<CLI::App*, Run>> commands;
  for (const auto add :
       {add_demo, add_inspect, add_generate, add_chat, add_tokenize, add_eval, add_needle,
        add_analyze, add_bench, add_calibrate, add_tune, add_report, add_completion, add_help}) {
    Run command = add(program);
    commands.emplace_back(program.get_subcommands({}).back(), std::move(command));
  }
  accept_streams(program);
  leave_ranges_out(program);
  // CLI11 would take the name behind it for a second command, and print the help of `help`.
  const bool is_help =
      (argc == 2 || (argc == 3 && argv[2][0] != '-')) && std::string_view(argv[1]) == "help";
  if (is_help) {
    const Misspelt word = print_help(program, argc == 3 ? argv[2] : "");
    if (word.message.empty()) return {};
    return {2, word.message, word.hint};
  }
  if (argc <= 1) {
    print_text(program.help());
    return {2};
  }
  try {
    program.parse(argc, argv);
    if (program.get_subcommands().empty()) throw CLI::RequiredError("A command");
    for (const auto& [command, action] : commands)
      if (command->parsed()) {
        check_not_empty(*command);
        check_divides(command->get_name());
        run_named(*command, action,
                  command_line(argc, argv));  // may find flags that contradict each other
      }
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return {program.exit(e)};  // --help, --version
    const Misspelt word = misspelt(program, {argv + 1, argv + argc});
    if (!word.message.empty()) return {2, word.message, word.hint};
    return {2, e.what(), "see sluice --help, or --help behind a command"};
  }
  return {};
}

Outcome attempt(int argc, char** argv) {
  const Outcome lost{1, kLostOutput, kLostOutputHint};
  try {
    const Outcome outcome = run(argc, argv);
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? outcome : lost;
  } catch (const RankError&) {
    throw;
  } catch (const Error& e) {
    return {1, e.what(), e.hint()};
  } catch (const std::bad_alloc&) {
    return {1, "out of memory", "a smaller --context or --dtype bf16 needs less"};
  } catch (const std::exception& e) {
    if (std::ferror(stdout) != 0) return lost;
    return {1, std::string("internal error: ") + e.what(), "please report this"};
  }
}

// Of several processes the first prints and writes. All end alike, by the failure of one too.
int run_as_rank(Communicator& ranks, int argc, char** argv) {
  if (ranks.rank() > 0) {
    g_says_nothing = true;
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ranks.abort("cannot open /dev/null");
  }
  try {
    const Outcome outcome = attempt(argc, argv);
    if (!outcome.message.empty()) ranks.fail(Error(outcome.message, outcome.hint), outcome.code);
    ranks.barrier();
    return outcome.code;
  } catch (const RankError& e) {
    return complain(e.what(), e.hint(), e.code());
  } catch (const std::exception& e) {  // the others may wait for this rank
    ranks.abort(e.what());
  }
}

// The communicator of all ranks. Without one nobody can tell the others: where all of them lack
// MPI, the first says it, exits, and its launcher ends the rest while they wait.
Communicator* opened_world(int& code) {
  try {
    return &world();
  } catch (const Error& e) {
    const int rank = launched().rank.value_or(0);
    if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
    code = complain(rank > 0 ? fmt::format("rank {}: {}", rank, e.what()) : e.what(), e.hint(), 1);
    return nullptr;
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  take_closed_streams();
  install_signal_handlers();
  int code = 0;
  Communicator* ranks = opened_world(code);
  if (ranks == nullptr) return code;
  if (ranks->size() > 1) return run_as_rank(*ranks, argc, argv);
  const Outcome outcome = attempt(argc, argv);
  return outcome.message.empty() ? outcome.code
                                 : complain(outcome.message, outcome.hint, outcome.code);
}

}  // namespace sluice::impl::cli
