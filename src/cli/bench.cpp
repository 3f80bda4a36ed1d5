// sluice bench: speed of a model, with interleaved runs of dense and accelerated.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench_output.h"
#include "cli/commands.h"
#include "cli/conclusion/conclusion.h"
#include "cli/options/attention_options.h"
#include "cli/options/audit_option.h"
#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/say.h"
#include "core/peak_memory.h"
#include "core/threads.h"
#include "eval/results.h"
#include "eval/text/text_stream.h"

namespace sluice::impl::cli {
namespace {

constexpr int64_t kDefaultTokens = 512;

struct BenchFlags : CommonOptions {
  std::string file;
  std::string separator = "<|endoftext|>";
  std::string format = "md";
  BenchOptions bench;
  std::string plan;
  bool always = false;
  bool full = false;
  AttentionFlags attention;
  LinearFlags linear;
  AuditFlags audit;
};

// Those of the text's beginning, or random ones, as many as there are or can be of use.
std::vector<int32_t> tokens_of(const BenchFlags& flags, const Checkpoint& checkpoint) {
  BenchOptions options = flags.bench;
  if (options.lengths.empty()) options.lengths = {kDefaultTokens};
  const int64_t n = std::min(bench_tokens(options), checkpoint.spec().max_positions);
  if (flags.file.empty()) return random_tokens(checkpoint.spec(), n);
  const auto tokenizer = open_tokenizer_of(checkpoint);
  TextStream text(flags.file, *tokenizer, flags.separator);
  std::vector<int32_t> tokens;
  text.read(n, tokens);
  return tokens;
}

// Each length once, ascending; where the user names none, one that leaves room to decode.
std::vector<int64_t> lengths_of(const BenchFlags& flags, const ModelSpec& spec, int64_t n_tokens) {
  std::vector<int64_t> lengths = flags.bench.lengths;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  if (!lengths.empty()) return lengths;
  const int64_t n_predict = spec.causal ? flags.bench.n_predict : 0;
  const int64_t room = n_tokens > n_predict ? n_tokens - n_predict : n_tokens;
  return {std::clamp<int64_t>(room, 1, kDefaultTokens)};
}

void print_notes(const BenchFlags& flags, const std::vector<UniformAttention>& attention,
                 const BenchResult& result) {
  if (flags.file.empty() && result.candidates.size() > 1)
    say("sluice: the tokens are random, and {} such mean little; give a text with -f\n",
        attention.empty() ? "activations of" : "representatives found among");
  for (const std::string& line : result.left_out) say("sluice: {}\n", line);
}

// With --joint every choice twice, without and with it: what it saves is a matter of one run.
std::vector<UniformAttention> attention_to_time(const AttentionFlags& flags) {
  std::vector<UniformAttention> choices;
  for (UniformAttention choice : attention_choices(flags)) {
    if (choice.joint) {
      choice.joint = false;
      choices.push_back(choice);
      choice.joint = true;
    }
    choices.push_back(choice);
  }
  return choices;
}

// A plan file is followed where generate would follow it.
std::vector<BenchCandidate> candidates_of(const Acceleration& acceleration, Model& model,
                                          bool always) {
  std::vector<BenchCandidate> candidates = bench_candidates(
      acceleration.choices, prepared_plans(model, acceleration), model.plan_shape());
  if (acceleration.plan)
    candidates.front().follows = [always, &file = *acceleration.plan](int64_t n_tokens,
                                                                      int64_t n_predict) {
      return always || why_dense(file, n_tokens, n_predict).empty();
    };
  return candidates;
}

// Every candidate once more, audited: what that costs is a matter of one run.
void add_audited(std::vector<BenchCandidate>& candidates, const AuditFlags& flags,
                 const Acceleration& acceleration) {
  for (size_t i = candidates.size(); flags.every > 0 && i > 0; --i) {
    BenchCandidate twin = candidates[i - 1];
    twin.plan.attention.audited = true;
    twin.audit = audit_options(flags, acceleration, twin.plan.attention);
    twin.label += fmt::format(", audit {} {}", flags.mode, flags.every);
    twin.settings["audit"] = flags.every;
    twin.settings["audit_mode"] = flags.mode;
    candidates.insert(candidates.begin() + static_cast<ptrdiff_t>(i), std::move(twin));
  }
}

void run_bench(BenchFlags& flags) {
  const std::vector<UniformAttention> attention = attention_to_time(flags.attention);
  const std::vector<UniformLinear> linear = linear_choices(flags.linear, flags.attention.joint);
  check_audited(flags.audit, !attention.empty() || !linear.empty() || !flags.plan.empty());
  if (flags.audit.every > flags.bench.n_predict)
    throw CLI::ValidationError(fmt::format("--audit {} compares nothing of {} tokens, give -n {}",
                                           flags.audit.every, flags.bench.n_predict,
                                           flags.audit.every));
  check_outputs(flags, {flags.file, flags.linear.bases, flags.plan});
  if (flags.wants_results()) check_read_again(flags.file);
  const auto checkpoint = open_checkpoint(flags.model);
  const ModelSpec& spec = checkpoint->spec();
  const Acceleration acceleration = read_acceleration(
      {.plan = flags.plan, .attention = attention, .linear = linear, .linear_flags = flags.linear},
      *checkpoint, flags.file);
  const std::vector<int32_t> tokens = tokens_of(flags, *checkpoint);
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  flags.bench.lengths = lengths_of(flags, spec, n_tokens);
  check_lengths(flags.bench.lengths, spec.max_positions, n_tokens);
  flags.context = std::min(bench_tokens(flags.bench), spec.max_positions);
  Model model = load_model(checkpoint, flags);
  std::vector<BenchCandidate> candidates = candidates_of(acceleration, model, flags.always);
  add_audited(candidates, flags.audit, acceleration);
  BenchResult result;
  {
    ProgressBar bar("bench", flags.quiet);
    result = bench_model(model, tokens, std::move(candidates), flags.bench,
                         [&](double done, const std::string& now) { bar.update(done, now); });
  }
  warn_of_leaks(acceleration, spec.causal);
  print_notes(flags, attention, result);
  warn_of_same_text(acceleration.bases);
  int64_t longest = 0;  // prompt, with the plan
  for (const BenchCase& found : result.cases)
    if (found.candidate > 0 && !found.ran_dense) longest = std::max(longest, found.n_tokens);
  note_other_use(acceleration, model, longest);
  const bool csv = flags.format == "csv";  // for programs, which want all and numbers
  const bool full = flags.full || csv;
  const std::string title = fmt::format(
      "{}, {}, {} thread{}: median of {} samples, speed-up over dense with its lowest and "
      "highest{}",
      checkpoint->path.filename().string(), flags.dtype, threads(), threads() == 1 ? "" : "s",
      flags.bench.repeat, full ? ", and shares of the time" : "");
  const TextTable table = (full ? full_bench_table : bench_table)(result, title);
  print("{}", csv ? table.csv() : table.markdown());
  if (!flags.quiet && !csv)
    print("\npp: reading a prompt of so many tokens. tg@: decoding one token after so many.\n");
  if (!flags.quiet)
    say("weights {:.1f} MiB, peak memory {:.1f} MiB\n",
        static_cast<double>(model.weight_bytes()) / 0x1p20,
        static_cast<double>(peak_memory_bytes()) / 0x1p20);
  for (const BenchCase& found : result.cases)
    if (!found.audit.empty())
      say("{} {}: measured KL {}, delta x {:.4g}\n", found.name, result.label_of(found),
          interval_text(found.audit.back().kl), found.audit.back().delta_factor);
  if (!flags.quiet && !csv) print("{}\n", bench_conclusion(result, spec.max_positions));
  if (flags.wants_results())
    write_outputs(bench_results({.command_line = flags.command_line,
                                 .checkpoint = *checkpoint,
                                 .model = model,
                                 .text = flags.file,
                                 .model_sha256 = acceleration.model_sha256,
                                 .bases = acceleration.bases ? &*acceleration.bases : nullptr},
                                result),
                  flags);
}

}  // namespace

Run add_bench(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "bench",
      "Speed of a model: pp512 is the prefill of 512 tokens, tg@512 decoding after them.\n"
      "\n"
      "With --attention or --linear every round times the dense model and then each choice. So a\n"
      "change in clock or load affects all of them. The speed-up is the median over the rounds,\n"
      "with the lowest and highest; where these are on both sides of 1 there is no difference.\n"
      "Where other work disturbs the samples of a length (their middle half is wider than 10% of\n"
      "the median), all of its rounds are repeated once.\n"
      "\n"
      "--full has more columns. select, attend, linear and rest are shares of the\n"
      "time: choosing representatives, attention itself, the blocks' matrices, and all else. r/T\n"
      "is the share of tokens that stand for themselves, dropped that of the pairs a selection\n"
      "with --joint decided by its basis. fast is the share of tokens that --linear gsi lets "
      "through its\n"
      "subspace; weights the share of the blocks' linear weights that decoding a token reads.\n"
      "Both are of the test's own tokens. (In a prefill tokens share the weights: a dash.)\n"
      "\n"
      "With --plan a length runs as `generate` would run it for a prompt of that length and\n"
      "--predict tokens after it: dense, and marked so, where the plan was not measured faster.\n"
      "--always follows the plan everywhere.\n"
      "\n"
      "Give a text like those you serve: how many tokens are redundant depends on it. Without\n"
      "one tokens are random, which is good enough for the dense model only.\n"
      "\n"
      "  sluice bench -m MODEL\n"
      "  sluice bench -m MODEL -f wiki.txt -c 512,1024,2048 --attention keys --tau 0.3,0.5\n"
      "  sluice bench -m MODEL -f wiki.txt --linear gsi --bases bases.safetensors --rank 64,128\n"
      "  sluice bench -m MODEL -f wiki.txt -c 128,512,2048 --plan plan.json");
  auto flags = std::make_shared<BenchFlags>();
  add_common_options(*command, *flags);
  command->remove_option(command->get_option("--context"));
  command->add_option("-f,--file", flags->file, "Text file to read; random tokens without");
  command
      ->add_option("-c,--context", flags->bench.lengths,
                   "Tokens of prefill; several with commas (default 512, or what model and\n"
                   "text allow)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command
      ->add_option("-n,--predict", flags->bench.n_predict,
                   "Tokens to decode after each; 0: none. Attention keys chooses\n"
                   "representatives a block at a time: fewer tokens than --block may show\n"
                   "all of that work, or none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--repeat", flags->bench.repeat, "Samples of each, after one to warm up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--format", flags->format, "Of the table: md, or csv, which is full")
      ->check(CLI::IsMember({"md", "csv"}))
      ->capture_default_str();
  command->add_flag("--full", flags->full, "Also where the time went and what was saved");
  command
      ->add_option("--separator", flags->separator,
                   "What parts documents in the file; empty for none")
      ->capture_default_str();
  add_auto_plan_options(*command, flags->plan, flags->always);
  add_attention_options(*command, flags->attention, /*lists=*/true);
  add_linear_options(*command, flags->linear, /*lists=*/true);
  add_audit_options(*command, flags->audit);
  return [flags](const std::string& command_line) {
    flags->command_line = command_line;
    run_bench(*flags);
  };
}

}  // namespace sluice::impl::cli
