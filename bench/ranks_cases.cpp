#include "ranks_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/runs/bench_model.h"
#include "eval/timing.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "ranks/archive.h"
#include "ranks/world.h"
#include "silent_transport.h"
#include "table.h"
#include "timed_model.h"

namespace sluice::impl::bench {
namespace {

constexpr int64_t kDividedSteps = 16;
constexpr size_t kSmall = 4, kLarge = size_t{4} << 20;  // bytes of messages that measure a link
constexpr int kRoundTrips = 50;

// Every rank's value, in the order of ranks.
template <typename T>
std::vector<T> of_all(Communicator& ranks, T own) {
  std::vector<T> values;
  for (const auto& bytes : ranks.gather_all(packed(own))) values.push_back(unpacked<T>(bytes));
  return values;
}
template <typename T>
T sum(const std::vector<T>& values) {
  T total = 0;
  for (const T& value : values) total += value;
  return total;
}
template <typename T>
T most(const std::vector<T>& values) {
  return *std::max_element(values.begin(), values.end());
}

// A barrier that ranks leave at about the same time.
void meet(Communicator& ranks) {
  float one = 1;
  ranks.add_all({&one, 1});
}

// Seconds of messages: messages * latency + bytes / speed.
struct Link {
  double latency_ms, bytes_per_ms;

  double ms(int64_t messages, int64_t bytes) const {
    return static_cast<double>(messages) * latency_ms + static_cast<double>(bytes) / bytes_per_ms;
  }
};

// Half of what a message to the next rank and back takes, between ranks 0 and 1.
double message_ms(Communicator& ranks, size_t n_bytes, int repeat) {
  std::vector<std::byte> data(n_bytes);
  std::vector<double> samples;
  for (int sample = -1; sample < repeat; ++sample) {
    meet(ranks);
    const double ms = time_ms([&] {
      for (int i = 0; i < kRoundTrips && ranks.rank() < 2; ++i)
        for (const int from : {0, 1}) {
          if (ranks.rank() == from)
            ranks.send(data, 1 - from);
          else
            ranks.receive(data, from);
        }
    });
    if (sample >= 0) samples.push_back(ms / (2 * kRoundTrips));
  }
  return of_all(ranks, median(samples)).front();
}

Link measured_link(Communicator& ranks, int repeat) {
  const double small = message_ms(ranks, kSmall, repeat), large = message_ms(ranks, kLarge, repeat);
  return {.latency_ms = small, .bytes_per_ms = static_cast<double>(kLarge) / (large - small)};
}

// A model of these ranks, and two kinds of passes through it.
class DividedModel {
 public:
  DividedModel(Communicator& ranks, const std::shared_ptr<const Checkpoint>& checkpoint,
               DType dtype, bool tensor)
      : model_(checkpoint, make_cpu_backend(dtype),
               {.context = 0, .progress = {}, .part = part(ranks, *checkpoint, dtype, tensor)}),
        scores_(host_buffer(DType::kF32, {1, model_.spec().vocab})) {}

  // One pass with the scores after its last token.
  void prefill(int64_t n_tokens) {
    KvCache cache = model_.make_cache(1, n_tokens);
    pass(random_tokens(model_.spec(), n_tokens), cache);
  }
  // kDividedSteps tokens after others.
  void decode(int64_t n_before) {
    if (!cache_) {
      cache_ = model_.make_cache(1, n_before + kDividedSteps);
      pass(random_tokens(model_.spec(), n_before), *cache_);
    }
    cache_->truncate(n_before);
    for (int64_t step = 0; step < kDividedSteps; ++step) pass({1}, *cache_);
  }

 private:
  static RankPart part(Communicator& ranks, const Checkpoint& checkpoint, DType dtype,
                       bool tensor) {
    const ModelDescription& description = checkpoint.description;
    if (!tensor)
      return {.stage = balanced_stage(
                  ranks, divided_bytes(description, checkpoint.weights(), {.compute = dtype})),
              .share = nullptr};
    return {.stage = nullptr,
            .share = std::make_shared<TensorShare>(
                ranks, divide_tensors(description, checkpoint.weights(), {}, ranks.size()))};
  }

  void pass(const std::vector<int32_t>& tokens, KvCache& cache) {
    const ConstTensor hidden = model_.forward(tokens, cache);
    model_.logits(hidden.rows_from(hidden.rows() - 1, 1), scores_.view());
    int32_t chosen = 1;
    model_.share({&chosen, 1});
  }

  Model model_;
  std::optional<KvCache> cache_;
  Buffer scores_;
};

// A pass of all ranks; figures are of one token where it decodes.
struct Pass {
  std::string name;
  std::function<void(DividedModel&)> run;
  double n_tokens = 1;  // that figures are divided by
};

class RanksCase {
 public:
  RanksCase(const nlohmann::json& description, int repeat, nlohmann::json& results)
      : repeat_(repeat),
        name_(description.at("name")),
        n_prefill_(description.at("prefill")),
        n_before_(description.at("decode")),
        results_(results),
        table_(name_, results),
        ranks_(world()) {
    if (ranks_.size() < 2)
      throw Error(name_ + ": there is one rank", "mpirun -n 2 sluice_bench -t 1 CASE.json");
    link_ = measured_link(ranks_, repeat_);
    table_.say(fmt::format("{} ranks; a message: {:.2f} us and {:.2f} GB/s", ranks_.size(),
                           1e3 * link_.latency_ms, link_.bytes_per_ms / 1e6));
    table_.columns({"split", "pass", "computing ms", "messages", "bytes", "sending ms",
                    "together ms", "measured ms", "measured / together"});
  }

  void run(const std::shared_ptr<const Checkpoint>& checkpoint, DType dtype) {
    dtype_ = dtype_name(dtype);
    for (const bool tensor : {false, true}) {
      Communicator silent(std::make_unique<SilentTransport>(ranks_.rank(), ranks_.size()));
      DividedModel computing(silent, checkpoint, dtype, tensor);
      DividedModel model(ranks_, checkpoint, dtype, tensor);
      row({fmt::format("prefill {}", n_prefill_),
           [&](DividedModel& of) { of.prefill(n_prefill_); }},
          computing, model, tensor);
      row({fmt::format("decode after {}", n_before_),
           [&](DividedModel& of) { of.decode(n_before_); }, static_cast<double>(kDividedSteps)},
          computing, model, tensor);
    }
  }

 private:
  // A pipeline has one rank at work at a time; ranks of a tensor split work together.
  double computing_ms(const Pass& pass, DividedModel& model, bool tensor) {
    double own = 0;
    for (int at_work = 0; at_work < (tensor ? 1 : ranks_.size()); ++at_work) {
      meet(ranks_);
      if (tensor || at_work == ranks_.rank()) own = time_ms([&] { pass.run(model); });
    }
    const std::vector<double> all = of_all(ranks_, own);
    return tensor ? most(all) : sum(all);
  }

  // What goes between ranks in a pass: of a pipeline one message after the other, of a tensor split
  // those of all ranks at once.
  struct Sent {
    int64_t messages, bytes;
  };
  double measured_ms(const Pass& pass, DividedModel& model, bool tensor, Sent& sent) {
    meet(ranks_);
    const Sent before{ranks_.messages_sent(), ranks_.bytes_sent()};
    const double ms = time_ms([&] { pass.run(model); });
    const Sent own{ranks_.messages_sent() - before.messages, ranks_.bytes_sent() - before.bytes};
    const auto messages = of_all(ranks_, own.messages), bytes = of_all(ranks_, own.bytes);
    sent = tensor ? Sent{most(messages), most(bytes)} : Sent{sum(messages), sum(bytes)};
    return most(of_all(ranks_, ms));
  }

  void row(const Pass& pass, DividedModel& computing, DividedModel& model, bool tensor) {
    std::vector<double> compute, whole;
    Sent sent{};
    run_interleaved(repeat_, 2, [&](size_t piece, int round) {
      const double ms = piece == 0 ? computing_ms(pass, computing, tensor)
                                   : measured_ms(pass, model, tensor, sent);
      if (round >= 0) (piece == 0 ? compute : whole).push_back(ms / pass.n_tokens);
    });
    const double sending = link_.ms(sent.messages, sent.bytes) / pass.n_tokens;
    const double together = median(compute) + sending, measured = median(whole);
    const double n_messages = static_cast<double>(sent.messages) / pass.n_tokens,
                 n_bytes = static_cast<double>(sent.bytes) / pass.n_tokens;
    const std::string split = tensor ? "tensor" : "pipeline";
    table_.row({split, pass.name, fmt::format("{:.2f}", median(compute)),
                fmt::format("{:.0f}", n_messages), fmt::format("{:.0f}", n_bytes),
                fmt::format("{:.3f}", sending), fmt::format("{:.2f}", together),
                fmt::format("{:.2f}", measured), fmt::format("{:.2f}", measured / together)});
    results_["cases"].push_back({{"name", fmt::format("{} {} {}", name_, split, pass.name)},
                                 {"n_ranks", ranks_.size()},
                                 {"dtype", dtype_},
                                 {"mode", "dense"},
                                 {"computing_ms", median(compute)},
                                 {"messages", n_messages},
                                 {"bytes", n_bytes},
                                 {"sending_ms", sending},
                                 {"samples_ms", whole},
                                 {"median_ms", measured}});
  }

  int repeat_;
  std::string name_;
  int64_t n_prefill_, n_before_;
  nlohmann::json& results_;
  Table table_;
  Communicator& ranks_;
  Link link_{};
  std::string dtype_;
};

}  // namespace

void run_ranks_case(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  const std::string name = description.at("name");
  const auto checkpoint = synthetic_checkpoint(ConfigReader(description.at("config"), name));
  RanksCase ranks(description, repeat, results);
  for (const std::string dtype : description.at("dtypes")) ranks.run(checkpoint, dtype_of(dtype));
}

}  // namespace sluice::impl::bench
