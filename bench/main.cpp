// Runs benchmark cases, each a JSON file (bench/cases), on the device that the case names.
// CPU: kind "model" (the default), prefill and decode of whole models; "attention", selection and
// attention on representatives against dense attention; "linear", gated and graded linear layers
// against dense ones; "batch", sequences decoded together against one alone; "cache",
// attention of one token against a plain read of its cache; "ranks", under mpirun, passes of a
// divided model against the cost model of docs/scale.md; "requests", a checkpoint timed on request
// (requests.h). Every round times the candidate and all baselines, so
// that a change in clock or load affects all alike. CUDA: the kinds of bench/cuda/cases.cpp.
//
//   sluice_bench [--repeat N] [--threads N] [--json FILE] CASE.json …

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "attention_cases.h"
#include "backend/backend.h"
#include "batch_cases.h"
#include "cache_cases.h"
#include "core/threads.h"
#include "cuda_cases.h"
#include "eval/results.h"
#include "eval/shell_line.h"
#include "io/json/parse.h"
#include "io/mapped_file.h"
#include "linear_cases.h"
#include "model_cases.h"
#include "ranks/world.h"
#include "ranks_cases.h"
#include "requests.h"

namespace sluice::impl::bench {
namespace {

constexpr JsonLimits kLimits = {.bytes = 1 << 20, .values = 1 << 16};
constexpr int kCpuSamples = 5;

struct Options {
  std::vector<std::string> cases;
  std::string json;
  int repeat = 0;  // 0: not given
  int threads = 0;
};

// The value of a key that holds a string.
std::string text_of(const nlohmann::json& description, const char* key, const char* fallback,
                    const std::string& path) {
  if (!description.contains(key)) return fallback;
  if (!description[key].is_string()) throw Error(path + ": " + key + ": expected a string");
  return description[key];
}

void run_case(const std::string& path, const Options& options, nlohmann::json& results) {
  const nlohmann::json description = parse_json(read_text_file(path, kLimits.bytes), path, kLimits);
  if (!description.is_object()) throw Error(path + ": expected an object");
  const std::string name = text_of(description, "name", "", path);
  if (name.empty()) throw Error(path + ": a case needs a name");
  const std::string device = text_of(description, "device", "cpu", path);
  const std::string kind = text_of(description, "kind", "model", path);
  const int samples = options.repeat > 0 ? options.repeat : kCpuSamples;
  if (device == "cuda") {
    const std::string reason = no_cuda_reason();
    if (reason.empty())
      run_cuda_case(description, options.repeat, results);
    else
      fmt::print("{} ({}) is skipped: {}\n", name, path, reason);
  } else if (device != "cpu") {
    throw Error(path + ": device: expected \"cpu\" or \"cuda\", found \"" + device + "\"");
  } else if (kind == "attention") {
    run_attention_cases(description, samples, results);
  } else if (kind == "linear") {
    run_linear_cases(description, samples, results);
  } else if (kind == "model") {
    run_model_case(description, samples, results);
  } else if (kind == "batch") {
    run_batch_case(description, make_cpu_backend, samples, results);
  } else if (kind == "cache") {
    run_cache_case(description, samples, results);
  } else if (kind == "ranks") {
    run_ranks_case(description, samples, results);
  } else if (kind == "requests") {
    run_requests(description);
  } else {
    throw Error(path + ": there is no kind \"" + kind + "\" on the CPU",
                "kinds: attention, batch, cache, linear, model, ranks, requests");
  }
}

int run(int argc, char** argv) {
  CLI::App program("Speed of models and of their parts against the machine's limits",
                   "sluice_bench");
  Options options;
  program.add_option("cases", options.cases, "Case files, see bench/cases")->required();
  program.add_option("--json", options.json, "Also write the results to this file");
  program
      .add_option("--repeat", options.repeat,
                  "Samples of each; by default 5 on the CPU, on CUDA as many as the kind takes")
      ->check(CLI::Range(1, 1000));
  program.add_option("-t,--threads", options.threads, "Threads; 0 takes every core");
  CLI11_PARSE(program, argc, argv);
  // Rank 0 prints and writes for all.
  const bool first = world().rank() == 0;
  if (!first && std::freopen("/dev/null", "w", stdout) == nullptr) throw Error("no /dev/null");
  set_threads(options.threads);
  std::vector<std::string> words{"sluice_bench"};
  words.insert(words.end(), argv + 1, argv + argc);
  const auto backend = make_cpu_backend(DType::kF32);
  nlohmann::json results = results_header("bench", shell_line(words), *backend);
  results["cases"] = nlohmann::json::array();
  fmt::print("{}, {}, {} threads\n", results["machine"]["cpu"].get<std::string>(),
             backend->description(), threads());
  for (const std::string& path : options.cases) run_case(path, options, results);
  if (first && !options.json.empty()) write_json(results, options.json);
  return 0;
}

}  // namespace

// One line. Ranks end together, and the first one says why.
void complain(const Error& error) {
  const auto print = [](const Error& e) {
    fmt::print(stderr, "sluice_bench: {}{}{}\n", e.what(), e.hint().empty() ? "" : "; ", e.hint());
  };
  if (!launched().several()) return print(error);
  try {
    if (dynamic_cast<const RankError*>(&error) == nullptr) world().fail(error, 1);
    if (world().rank() == 0) print(error);
  } catch (const RankError& all) {
    if (world().rank() == 0) print(all);
  } catch (const Error& e) {  // there is no MPI
    print(e);
  }
}

}  // namespace sluice::impl::bench

int main(int argc, char** argv) {
  try {
    return sluice::impl::bench::run(argc, argv);
  } catch (const sluice::Error& e) {
    sluice::impl::bench::complain(e);
  } catch (const std::exception& e) {
    sluice::impl::bench::complain(sluice::Error(e.what()));
  }
  return 1;
}
