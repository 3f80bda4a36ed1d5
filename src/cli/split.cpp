#include "cli/split.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <thread>

#include "cli/terminal/say.h"
#include "cli/terminal/text_table.h"
#include "core/error.h"
#include "core/peak_memory.h"
#include "model/load.h"
#include "ranks/archive.h"

namespace sluice::impl::cli {
namespace {

constexpr int kWrongUsage = 2;  // exit status

// Standard output and stderr of a rank that prints nothing.
class Streams {
 public:
  void mute() {
    std::fflush(stdout);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0) return;
    for (Stream& stream : all_) {
      if (stream.kept < 0) stream.kept = fcntl(stream.number, F_DUPFD_CLOEXEC, 3);
      dup2(nowhere, stream.number);
    }
    close(nowhere);
  }
  void show() {
    std::fflush(stdout);
    for (const Stream& stream : all_)
      if (stream.kept >= 0) dup2(stream.kept, stream.number);
  }

 private:
  struct Stream {
    int number;
    int kept = -1;  // a copy of it as it was
  };
  std::array<Stream, 2> all_ = {{{STDOUT_FILENO}, {STDERR_FILENO}}};
};

// Those that every rank of this machine would take.
int own_cores(const Communicator& ranks) {
  const auto mine = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t all = sysconf(_SC_NPROCESSORS_ONLN);
  if (mine < all) return 0;  // the launcher divided them
  return static_cast<int>(std::max<int64_t>(1, all / ranks.n_local()));
}

}  // namespace

CLI::Option* add_split_option(CLI::App& command, std::string& split) {
  return command
      .add_option("--split", split,
                  "Under mpirun -n N: how ranks share the model. pipeline: each has some of the\n"
                  "layers, so that the largest share of the weights is as small as it can be.\n"
                  "auto: by what fits, today a pipeline")
      ->check(CLI::IsMember({"auto", "pipeline"}))
      ->default_str("auto");
}

void run_on_ranks(Communicator& ranks, CommonOptions& options,
                  const std::function<void()>& command) {
  if (ranks.size() == 1) return command();
  if (options.threads == 0) options.threads = own_cores(ranks);
  Streams streams;
  const bool prints = ranks.rank() == 0;
  if (!prints) {
    streams.mute();
    options.quiet = true;
    options.json.clear();
    options.html.clear();
  }
  const auto fail = [&](const Error& error, int code) {
    if (!prints) streams.show();  // abort says which rank it was
    ranks.fail(error, code);
  };
  try {
    try {
      command();
      ranks.barrier();
    } catch (const RankError&) {
      throw;
    } catch (const Error& error) {
      fail(error, 1);
    } catch (const CLI::ParseError& error) {
      fail(Error(error.what()), kWrongUsage);
    } catch (const std::bad_alloc&) {
      fail(Error("out of memory", "more ranks, a smaller --context or --dtype bf16 need less"), 1);
    }
  } catch (const RankError& error) {
    if (!prints) streams.mute();  // the first rank says it
    if (error.code() == kWrongUsage) throw CLI::ValidationError(error.what());
    throw;
  }
}

std::string text_of_first(Communicator& ranks, const std::function<std::string()>& read) {
  const std::string own = ranks.rank() == 0 ? read() : "";
  const auto all = ranks.gather_all(std::as_bytes(std::span(own)));
  return {reinterpret_cast<const char*>(all[0].data()), all[0].size()};
}

std::shared_ptr<Stage> stage_of(Communicator& ranks, const Checkpoint& checkpoint,
                                const CommonOptions& options) {
  if (ranks.size() == 1) return nullptr;
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
