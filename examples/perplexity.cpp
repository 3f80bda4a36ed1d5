// Perplexity of a text, dense and by a plan, on the same windows: perplexity MODEL TEXT [PLAN]
// Without a file the plan is refined attention in every layer.

#include <array>
#include <cstdio>
#include <exception>

#include "sluice/sluice.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: perplexity MODEL TEXT [PLAN]\n");
    return 2;
  }
  try {
    sluice::LoadOptions load;
    load.context = 1024;
    sluice::Model model = sluice::Model::load(argv[1], load);
    sluice::AttentionOptions refine;
    refine.mode = sluice::AttentionMode::kRefine;
    const std::array plans = {argc > 3 ? sluice::Plan::load(argv[3])
                                       : sluice::Plan::uniform(refine)};
    sluice::EvaluateOptions options;
    options.max_windows = 2;
    const sluice::Evaluation found = sluice::evaluate(model, argv[2], plans, options);
    const sluice::PlanLoss& plan = found.plans.front();
    std::printf("dense: perplexity %.3f ± %.3f over %lld tokens\n", found.perplexity.value,
                found.perplexity.standard_error, static_cast<long long>(found.n_tokens));
    std::printf("plan:  perplexity %.3f, %.4f ± %.4f times dense's\n", plan.perplexity.value,
                plan.perplexity_ratio.value, plan.perplexity_ratio.standard_error);
    std::printf("       KL %.5f ± %.5f nats, same top-1 %.1f%%, keys read %.1f%%\n", plan.kl.value,
                plan.kl.standard_error, 100 * plan.top1_agreement.value, 100 * plan.keys_read);
    return 0;
  } catch (const sluice::Error& error) {
    std::fprintf(stderr, "perplexity: %s (hint: %s)\n", error.what(), error.hint().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perplexity: %s\n", error.what());
  }
  return 1;
}
