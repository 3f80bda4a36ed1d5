// sluice eval: how well a model predicts a text, and how far acceleration is from exactness.

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/bench_output.h"
#include "cli/commands.h"
#include "cli/comparison_output.h"
#include "cli/conclusion/conclusion.h"
#include "cli/options/attention_options.h"
#include "cli/options/baseline_options.h"
#include "cli/options/linear_options.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "eval/eval_results.h"
#include "ranks/world.h"

namespace sluice::impl::cli {
namespace {

struct EvalOptions : CommonOptions {
  std::string file;
  std::string separator = "<|endoftext|>";
  int64_t max_windows = 0;
  int64_t n_predict = 0;
  int64_t batch = 1;
  std::optional<double> mask_share;
  std::optional<uint64_t> mask_seed;
  std::string plan;
  AttentionFlags attention;
  LinearFlags linear;
};

ResultsOrigin origin_of(const EvalOptions& options, const Checkpoint& checkpoint,
                        const Model& model, const Acceleration& acceleration) {
  return {.command_line = options.command_line,
          .checkpoint = checkpoint,
          .model = model,
          .text = options.file,
          .model_sha256 = acceleration.model_sha256,
          .bases = acceleration.bases ? &*acceleration.bases : nullptr,
          .n_ranks = world().size()};
}

// Share of the work behind us, by the text read and by the windows asked for.
double done_share(const EvalOptions& options, const TextStream& text, int64_t n_windows) {
  const auto share = [](int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
  };
  return options.max_windows > 0
             ? std::max(share(n_windows, options.max_windows), text.share_given())
             : text.share_given();
}

MaskOptions mask_of(const EvalOptions& options) {
  MaskOptions mask;
  mask.share = options.mask_share.value_or(mask.share);
  mask.seed = options.mask_seed.value_or(mask.seed);
  return mask;
}

void run_dense(const EvalOptions& options, const Checkpoint& checkpoint, TextStream& text,
               Model& model) {
  PerplexityResult result;
  {
    ProgressBar bar("eval", options.quiet);
    result = evaluate_perplexity(
        model, text,
        {.max_windows = options.max_windows, .n_batch = options.batch, .communicator = &world()},
        [&](const PerplexityResult& so_far) {
          if (!options.quiet) {
            bar.make_room();
            if (so_far.n_windows == 1)
              print("{:>8} {:>12} {:>12} {:>10}\n", "window", "tokens", "ppl", "±");
            print("{:>8} {:>12} {:>12.4f} {:>10.4f}\n", so_far.n_windows, so_far.loss.count(),
                  so_far.perplexity(), so_far.standard_error());
            std::fflush(stdout);
          }
          bar.update(done_share(options, text, so_far.n_windows),
                     fmt::format("ppl {:.3f}", so_far.perplexity()));
        });
  }
  print(
      "perplexity {:.4f} ± {:.4f}, loss {:.5f} ± {:.5f} nats/token, {} tokens in {} windows "
      "of {}\n",
      result.perplexity(), result.standard_error(), result.loss.mean(),
      result.loss.standard_error(), result.loss.count(), result.n_windows, model.context());
  if (options.wants_results())
    write_outputs(perplexity_results(origin_of(options, checkpoint, model, {}), result), options);
}

void run_comparison(const EvalOptions& options, const Checkpoint& checkpoint, TextStream& text,
                    Model& model, const Acceleration& acceleration) {
  const std::vector<UniformChoice>& choices = acceleration.choices;
  const std::vector<Plan> plans = prepared_plans(model, acceleration);
  const PlanShape shape = model.plan_shape();
  CompareResult result;
  {
    ProgressBar bar("eval", options.quiet);
    result = compare_plans(
        model, text, plans,
        {.max_windows = options.max_windows,
         .n_predict = options.n_predict,
         .mask = mask_of(options),
         .communicator = &world()},
        [&](const CompareResult& so_far) {
          if (!options.quiet) {
            bar.make_room();
            print_running(so_far, choices, shape);
          }
          bar.update(
              done_share(options, text, so_far.n_windows),
              fmt::format("KL {:.5f}", so_far.plans.front().tokens.value(metric("kl_mean"))));
        });
  }
  warn_of_leaks(acceleration, shape.causal);
  warn_of_same_text(acceleration.bases);
  note_other_use(acceleration, model, model.context());
  if (choices.size() == 1)
    print_summary(result.plans.front(), choices.front());
  else
    print_table(result, choices, shape);
  print("\n{} {}tokens in {} windows of {}", result.plans.front().tokens.n_tokens(),
        shape.causal ? "" : "masked ", result.n_windows, model.context());
  if (choices.size() == 1) print("; {}", choice_text(choices.front(), shape));
  if (model.prepared_bytes() > 0)
    print("; {:.1f} MiB in addition to weights of {:.1f} MiB",
          static_cast<double>(model.prepared_bytes()) / 0x1p20,
          static_cast<double>(model.weight_bytes()) / 0x1p20);
  print("\n");
  if (!options.quiet) print("{}\n", eval_conclusion(result, choice_labels(choices)));
  if (options.wants_results())
    write_outputs(comparison_results(origin_of(options, checkpoint, model, acceleration),
                                     {.choices = choices,
                                      .plans = plans,
                                      .result = result,
                                      .n_predict = options.n_predict,
                                      .mask = mask_of(options),
                                      .prepared_bytes = model.prepared_bytes(),
                                      .tokenizer = shape.causal ? &text.tokenizer() : nullptr}),
                  options);
}

// Refuses what baselines do not go with.
void check_baselines(const EvalOptions& options, const std::vector<UniformAttention>& attention) {
  check_baseline_device(attention, options.device);
  for (const UniformAttention& choice : attention)
    if (choice.mode == AttentionMode::kBaseline && options.n_predict > 0)
      throw CLI::ValidationError(
          fmt::format("--attention {} is there to compare with and does not generate, leave "
                      "--predict out",
                      attention_name(choice)));
}

// Refuses what does not go with the model: masks of a causal one, batches of an encoder.
void check_masks(const EvalOptions& options, const ModelSpec& spec) {
  if (spec.causal && (options.mask_share || options.mask_seed))
    throw Error(spec.family + " is a causal model, --mask-share and --mask-seed are for encoders",
                "leave them out: every token is predicted from those before it");
  if (!spec.causal && options.batch > 1)
    throw Error(spec.family + " is an encoder, --batch is for causal models", "leave --batch out");
}

void run_eval(const EvalOptions& options) {
  const std::vector<UniformAttention> attention = attention_choices(options.attention);
  check_baselines(options, attention);
  const std::vector<UniformLinear> linear = linear_choices(options.linear, options.attention.joint);
  const bool plan_given = !options.plan.empty();
  if (options.n_predict > 0 && attention.empty() && linear.empty() && !plan_given)
    throw CLI::ValidationError(
        "--predict compares generation with dense, give --attention keys or copy, or --linear gsi "
        "or graded");
  if (options.batch > 1 && (!attention.empty() || !linear.empty() || plan_given))
    throw CLI::ValidationError(
        "--batch is for perplexity alone, leave it out where plans are compared");
  check_outputs(options, {options.file, options.linear.bases, options.plan});
  if (options.wants_results()) check_read_again(options.file);
  const auto checkpoint = open_checkpoint(options.model);
  check_masks(options, checkpoint->spec());
  Acceleration acceleration = read_acceleration({.plan = options.plan,
                                                 .attention = attention,
                                                 .linear = linear,
                                                 .linear_flags = options.linear},
                                                *checkpoint, options.file);
  const auto tokenizer = open_tokenizer_of(*checkpoint);
  TextStream text(options.file, *tokenizer, options.separator);
  Model model = load_model(checkpoint, options);
  // An encoder's own figures are those of the dense plan.
  if (acceleration.choices.empty() && !model.spec().causal) acceleration.choices.emplace_back();
  if (acceleration.choices.empty())
    run_dense(options, *checkpoint, text, model);
  else
    run_comparison(options, *checkpoint, text, model, acceleration);
}

}  // namespace

Run add_eval(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "eval",
      "Perplexity of a model on a text, with its standard error; and how far accelerated\n"
      "attention and linear layers are from dense, on the same tokens in the same run.\n"
      "\n"
      "The text is cut into windows of --context tokens; each token is predicted from those\n"
      "before it in its window. Documents parted by the separator each begin with the\n"
      "tokenizer's first token. A running value is printed after every window.\n"
      "\n"
      "An encoder (BERT, ESM-2) predicts the tokens behind masks, which a seed places; its hidden\n"
      "rows are compared with those of exact attention too, layer by layer.\n"
      "\n"
      "  sluice eval -m MODEL -f wiki.txt -c 1024 --windows 50\n"
      "  sluice eval -m MODEL -f wiki.txt -c 1024 --attention keys --tau 0.3,0.5,auto\n"
      "  sluice eval -m MODEL -f wiki.txt -c 2048 --attention baseline:quest --keep 0.1,0.2\n"
      "  sluice eval -m MODEL -f wiki.txt --linear gsi --bases bases.safetensors --epsilon "
      "0.05,0.1");
  auto options = std::make_shared<EvalOptions>();
  add_common_options(*command, *options);
  command->add_option("-f,--file", options->file, "Text file to predict")->required();
  command->add_option("--windows", options->max_windows, "Stop after this many windows; 0: never")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--batch", options->batch,
                   "Windows that go through the model together; pays for short contexts")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command
      ->add_option("--separator", options->separator,
                   "What parts documents in the file; empty for none")
      ->capture_default_str();
  command
      ->add_option("-n,--predict", options->n_predict,
                   "Also generate this many tokens, dense and accelerated, from half of each of\n"
                   "the first windows, and tell how long they are alike; 0: not")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  command
      ->add_option("--mask-share", options->mask_share,
                   "Of an encoder: the share of the tokens to mask and predict (default: 0.15)")
      ->check(CLI::Range(1e-6, 0.999999));
  command->add_option("--mask-seed", options->mask_seed,
                      "Of an encoder: the seed of the places of masks (default: 0)");
  add_plan_option(*command, options->plan);
  add_attention_options(*command, options->attention, /*lists=*/true);
  add_baseline_options(*command, options->attention);
  add_linear_options(*command, options->linear, /*lists=*/true);
  return [options](const std::string& command_line) {
    options->command_line = command_line;
    run_eval(*options);
  };
}

}  // namespace sluice::impl::cli
