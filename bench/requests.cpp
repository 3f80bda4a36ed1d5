#include "requests.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "baselines.h"
#include "core/error.h"
#include "core/peak_memory.h"
#include "eval/timing.h"
#include "io/config.h"
#include "io/json/parse.h"
#include "sluice/version.h"
#include "timed_model.h"

namespace sluice::impl::bench {
namespace {

constexpr JsonLimits kRequestLimits = {.bytes = 1 << 20, .values = 1 << 16};
constexpr int64_t kMost = int64_t{1} << 30;

class Requests {
 public:
  explicit Requests(const ConfigReader& description)
      : timed_(open_checkpoint(description.require_string("model")),
               dtype_of(description.require_string("dtype")),
               description.require_int("context", 1, kMost)) {}

  nlohmann::json answer(const ConfigReader& request) {
    const std::string op = request.require_string("op");
    if (op == "prefill") return {{"ms", timed_.prefill_ms(request.require_int("n", 1, kMost))}};
    if (op == "decode")
      return {{"ms", timed_.decode_ms(request.require_int("depth", 0, kMost),
                                      request.require_int("n", 1, kMost))}};
    if (op == "greedy") return greedy(request);
    if (op == "read") return {{"ms", read_ms(request.require_int("bytes", 1, kMost * 64))}};
    if (op == "memory")
      return {{"peak_bytes", peak_memory_bytes()},
              {"weight_bytes", timed_.model().weight_bytes()},
              {"cache_bytes", timed_.cache_bytes()},
              {"file_bytes", weight_file_bytes(timed_.checkpoint())}};
    request.refuse("op", "\"prefill\", \"decode\", \"greedy\", \"read\" or \"memory\"");
  }

 private:
  nlohmann::json greedy(const ConfigReader& request) {
    std::vector<int32_t> prompt;
    for (const int64_t token : request.ints("tokens", 0, timed_.model().spec().vocab - 1))
      prompt.push_back(static_cast<int32_t>(token));
    std::vector<int32_t> tokens;
    std::vector<double> margins;
    for (const Likeliest& found : timed_.greedy(prompt, request.require_int("n", 1, kMost))) {
      tokens.push_back(found.token);
      margins.push_back(found.margin);
    }
    return {{"tokens", tokens}, {"margins", margins}};
  }

  // The buffer stays: its pages are there when it is read again.
  double read_ms(int64_t bytes) {
    if (!read_ || read_bytes_ != bytes) {
      read_.reset();
      read_.emplace(bytes);
      read_bytes_ = bytes;
      sum_ += read_->run();
    }
    return time_ms([&] { sum_ += read_->run(); });
  }

  TimedModel timed_;
  std::optional<PlainRead> read_;
  int64_t read_bytes_ = 0;
  uint64_t sum_ = 0;
};

void say(const nlohmann::json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace

void run_requests(const nlohmann::json& description) {
  Requests requests(ConfigReader(description, description.at("name")));
  say({{"ready", true}, {"sluice_version", SLUICE_VERSION}});
  for (std::string line; std::getline(std::cin, line);) {
    try {
      say(requests.answer(ConfigReader(parse_json(line, "request", kRequestLimits), "request")));
    } catch (const Error& error) {
      say({{"error", error.what()}});
    }
  }
}

}  // namespace sluice::impl::bench
