#include "cli/options/sampler_options.h"

#include <limits>

#include "cli/options/options.h"

namespace sluice::impl::cli {

void add_sampler_options(CLI::App& command, GenerateOptions& options) {
  const CLI::Validator count = CLI::Range(int64_t{0}, kMostCount).description("");
  command.add_option("-n,--predict", options.n_predict, "Tokens to generate at most")
      ->check(count)
      ->type_name("N")
      ->capture_default_str();
  SamplerOptions& sampler = options.sampler;
  command
      .add_option("--temperature", sampler.temperature,
                  "0 takes the likeliest token; higher is more varied")
      ->check(number_between(0, 100, "0 to 100"))
      ->capture_default_str();
  command.add_option("--top-k", sampler.top_k, "Sample from the k likeliest; 0: all")
      ->check(count)
      ->type_name("K")
      ->capture_default_str();
  command
      .add_option("--top-p", sampler.top_p,
                  "Sample from the likeliest that reach this probability together")
      ->check(number_between(std::numeric_limits<float>::min(), 1, "more than 0, up to 1"))
      ->capture_default_str();
  command
      .add_option("--min-p", sampler.min_p,
                  "Drop tokens less likely than this share of the likeliest")
      ->check(number_between(0, 1, "0 to 1"))
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", sampler.repetition_penalty,
                  "More than 1 makes tokens already seen less likely")
      ->check(number_between(std::numeric_limits<float>::min(), 100, "more than 0, up to 100"))
      ->capture_default_str();
  command.add_option("--stop", options.stop,
                     "End before this text appears; may be given several times");
  command.add_option("--seed", sampler.seed, "Seed of the random choices")
      ->check(whole_number())
      ->capture_default_str();
  command.add_flag("--ignore-eos", options.ignore_eos, "Go on past the end token");
}

}  // namespace sluice::impl::cli
