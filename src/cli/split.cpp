#include "cli/split.h"

#include <fmt/format.h>

#include "cli/terminal/say.h"
#include "cli/terminal/text_table.h"
#include "core/peak_memory.h"
#include "model/load.h"
#include "ranks/alike.h"
#include "ranks/archive.h"
#include "ranks/memory.h"

namespace sluice::impl::cli {

void add_split_option(CLI::App& command, std::string& split) {
  command
      .add_option("--split", split,
                  "Under mpirun -n N: how ranks share the model. pipeline: each has some of the\n"
                  "layers, so that the largest share of the weights is as small as it can be.\n"
                  "tensor: each has some of the heads and inner columns of every layer, no more\n"
                  "ranks than key heads. auto: a pipeline, with fewer layers for ranks that have\n"
                  "no memory for an equal share")
      ->check(CLI::IsMember({"auto", "pipeline", "tensor"}))
      ->default_str("auto");
}

RankPart rank_part(Communicator& ranks, const Checkpoint& checkpoint, const CommonOptions& options,
                   const std::string& split) {
  if (ranks.size() == 1) return {};
  // The last rank alone would miss it, and the others wait.
  check_head(!checkpoint.description.names.head.empty());
  const ModelDescription& description = checkpoint.description;
  if (split == "tensor")
    return {.stage = nullptr,
            .share = std::make_shared<TensorShare>(
                ranks, divide_tensors(description, checkpoint.weights(),
                                      weight_type_named(options.weights), ranks.size()))};
  const DividedBytes bytes =
      divided_bytes(description, checkpoint.weights(),
                    {.compute = options.dtype == "bf16" ? DType::kBF16 : DType::kF32,
                     .weights = weight_type_named(options.weights)});
  const bool by_memory = split != "pipeline" && options.device == "cpu";
  const auto ranges =
      by_memory ? divide_by_memory(bytes, memory_of(ranks)) : divide_layers(bytes, ranks.size());
  return {.stage = std::make_shared<Stage>(ranks, ranges[static_cast<size_t>(ranks.rank())]),
          .share = nullptr};
}

namespace {

// "2 to 5"
std::string range_text(Range range) {
  return range.size() > 0 ? fmt::format("{} to {}", range.begin, range.end - 1) : "none";
}

}  // namespace

// What a rank selects is its own, and the height of a sum depends on it.
void check_ranks(const Model& model) {
  if (model.tensor_share() != nullptr) check_alike(*model.ranks(), model.backend().description());
}

void say_ranks(const Model& model, bool quiet) {
  if (model.ranks() == nullptr) return;
  struct Figures {
    Range part;  // of layers or key heads
    int64_t weights, peak, bytes, messages;
  };
  Communicator& ranks = *model.ranks();
  const TensorShare* share = model.tensor_share();
  Figures own{.part = share ? share->ranges().kv_heads : model.stage()->layers(),
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
                  {"rank", share ? "key heads" : "layers", "weights MiB", "peak memory MiB",
                   "sent MiB", "messages sent"},
                  2);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto of = unpacked<Figures>(all[rank]);
    table.add({words(std::to_string(rank)), words(range_text(of.part)), mib(of.weights),
               mib(of.peak), mib(of.bytes), cell(of.messages)});
  }
  say("{}", table.markdown());
}

}  // namespace sluice::impl::cli
