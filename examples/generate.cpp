// Continues a prompt, printed as it comes: generate MODEL PROMPT [PLAN]

#include <cstdio>
#include <exception>

#include "sluice/sluice.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: generate MODEL PROMPT [PLAN]\n");
    return 2;
  }
  try {
    sluice::Model model = sluice::Model::load(argv[1]);
    sluice::GenerateOptions options;
    options.max_tokens = 32;
    if (argc > 3) options.plan = sluice::Plan::load(argv[3]);
    options.on_token = [](const sluice::GeneratedToken& token) {
      std::fwrite(token.text.data(), 1, token.text.size(), stdout);
      std::fflush(stdout);
      return true;
    };
    std::printf("%s", argv[2]);
    const sluice::GenerateResult result = sluice::generate(model, argv[2], options);
    std::printf(
        "\n%lld tokens after a prompt of %lld, %s\n", static_cast<long long>(result.tokens.size()),
        static_cast<long long>(result.n_prompt), result.followed_plan ? "by the plan" : "dense");
    return 0;
  } catch (const sluice::Error& error) {
    std::fprintf(stderr, "generate: %s (hint: %s)\n", error.what(), error.hint().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
  }
  return 1;
}
