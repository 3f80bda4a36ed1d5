#include "cli/split.h"

#include <fmt/format.h>

#include "cli/terminal/say.h"
#include "cli/terminal/text_table.h"
#include "core/peak_memory.h"
#include "model/load.h"
#include "ranks/archive.h"

namespace sluice::impl::cli {

void add_split_option(CLI::App& command, std::string& split) {
  command
      .add_option("--split", split,
                  "Under mpirun -n N: how ranks share the model. pipeline: each has some of the\n"
                  "layers, so that the largest share of the weights is as small as it can be.\n"
                  "auto: by what fits, today a pipeline")
      ->check(CLI::IsMember({"auto", "pipeline"}))
      ->default_str("auto");
}

std::shared_ptr<Stage> stage_of(Communicator& ranks, const Checkpoint& checkpoint,
                                const CommonOptions& options) {
  if (ranks.size() == 1) return nullptr;
  // The last rank alone would miss it, and the others wait.
  check_head(!checkpoint.description.names.head.empty());
  return balanced_stage(ranks, checkpoint.description, checkpoint.weights(),
                        options.dtype == "bf16" ? DType::kBF16 : DType::kF32);
}

void say_ranks(const Model& model, bool quiet) {
  if (model.stage() == nullptr) return;
  struct Figures {
    LayerRange layers;
    int64_t weights, peak, bytes, messages;
  };
  Communicator& ranks = model.stage()->ranks();
  Figures own{.layers = model.stage()->layers(),
              .weights = model.weight_bytes(),
              .peak = peak_memory_bytes(),
              .bytes = ranks.bytes_sent(),
              .messages = ranks.messages_sent()};
  const auto all = ranks.gather_all(packed(own));
  if (quiet) return;
  const auto mib = [](int64_t bytes) {
    return cell(static_cast<double>(bytes), Digits{.decimals = 2, .factor = 0x1p-20});
  };
  TextTable table("Ranks",
                  {"rank", "layers", "weights MiB", "peak memory MiB", "sent MiB", "messages sent"},
                  2);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto of = unpacked<Figures>(all[rank]);
    table.add(
        {words(std::to_string(rank)),
         words(of.layers.size() > 0 ? fmt::format("{} to {}", of.layers.begin, of.layers.end - 1)
                                    : "none"),
         mib(of.weights), mib(of.peak), mib(of.bytes), cell(of.messages)});
  }
  say("{}", table.markdown());
}

}  // namespace sluice::impl::cli
