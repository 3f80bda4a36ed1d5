// Perplexity with weights in blocks against the same values expanded to the compute dtype: what the
// rounding of activations costs. Prints a table in Markdown.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "backend/backend.h"
#include "core/error.h"
#include "core/threads.h"
#include "eval/compare/perplexity.h"
#include "model/weight_type.h"

namespace {

using namespace sluice::impl;

struct Options {
  std::string text;
  std::vector<std::string> models;
  std::vector<std::string> types = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};
  std::string dtype = "bf16";
  int64_t context = 512, windows = 16;
  int threads = 0;
};

// Of the same windows, in one pass each and a token at a time.
struct Perplexities {
  double prefill, decode;
  int64_t n_matrices, n_other;
};

Perplexities measure(const Options& options, const std::shared_ptr<const Checkpoint>& checkpoint,
                     const Tokenizer& tokenizer, std::optional<DType> type, bool expanded) {
  const DType dtype = options.dtype == "f32" ? DType::kF32 : DType::kBF16;
  Model model(
      checkpoint, make_cpu_backend(dtype),
      {.context = options.context, .progress = {}, .weights = type, .expand_blocks = expanded});
  const auto of_passes = [&](int64_t pass_tokens) {
    TextStream text(options.text, tokenizer, "<|endoftext|>");
    return evaluate_perplexity(
               model, text,
               {.max_windows = options.windows, .n_batch = 1, .pass_tokens = pass_tokens}, nullptr)
        .perplexity();
  };
  return {.prefill = of_passes(0),
          .decode = of_passes(1),
          .n_matrices = model.n_weights(),
          .n_other = model.n_other_weights()};
}

std::string change(double blocks, double expanded) {
  return fmt::format("{:+.3f}%", 100 * (blocks / expanded - 1));
}

void run(const Options& options) {
  set_threads(options.threads);
  fmt::print(
      "| model | type | matrices of it | expanded | in blocks | change | change, decoding |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n");
  double worst = 0;
  for (const std::string& path : options.models) {
    const auto checkpoint = open_checkpoint(path);
    const auto tokenizer = open_tokenizer_of(*checkpoint);
    for (const std::string& name : options.types) {
      const std::optional<DType> type = weight_type_named(name);
      const Perplexities whole = measure(options, checkpoint, *tokenizer, type, true);
      const Perplexities blocks = measure(options, checkpoint, *tokenizer, type, false);
      fmt::print("| {} | {} | {} of {} | {:.4f} | {:.4f} | {} | {} |\n",
                 std::filesystem::path(path).filename().string(), name,
                 blocks.n_matrices - blocks.n_other, blocks.n_matrices, whole.prefill,
                 blocks.prefill, change(blocks.prefill, whole.prefill),
                 change(blocks.decode, whole.decode));
      std::fflush(stdout);
      worst = std::max({worst, std::abs(blocks.prefill / whole.prefill - 1),
                        std::abs(blocks.decode / whole.decode - 1)});
    }
  }
  fmt::print("\nLargest change: {:.3f}%\n", 100 * worst);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App program("Perplexity with weights in blocks against the same weights expanded",
                   "sluice_blocks_perplexity");
  program.add_option("text", options.text, "Text file")->required();
  program.add_option("models", options.models, "Checkpoint folders")->required();
  program.add_option("--types", options.types, "Block types, with commas")->delimiter(',');
  program.add_option("--dtype", options.dtype, "Of activations")
      ->check(CLI::IsMember({"f32", "bf16"}));
  program.add_option("-c,--context", options.context, "Tokens of a window")
      ->check(CLI::Range(1, 1 << 30));
  program.add_option("--windows", options.windows, "0: the whole text")
      ->check(CLI::Range(0, 1 << 20));
  program.add_option("-t,--threads", options.threads, "0: every core")->check(CLI::Range(0, 4096));
  CLI11_PARSE(program, argc, argv);
  try {
    for (const std::string& name : options.types)
      if (const auto type = weight_type_named(name); !type || block_size(*type).elements == 1)
        throw sluice::Error("--types: " + name + " is no block type");
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "sluice_blocks_perplexity: {}\n", error.what());
    return 1;
  }
}
