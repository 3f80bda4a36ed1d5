// Which function runs a kind of case on a CUDA device.

#include <map>

#include "batch_cases.h"
#include "cuda/case.h"
#include "cuda_cases.h"

namespace sluice::impl::bench {
namespace {

constexpr int kBatchSamples = 7;

using Runner = void (*)(CudaCase&);

// The function of that name; the others are the error's hint.
Runner choose(const std::map<std::string, Runner>& runners, const std::string& name,
              const std::string& what) {
  const auto found = runners.find(name);
  if (found != runners.end()) return found->second;
  std::string others;
  for (const auto& [other, runner] : runners) others += (others.empty() ? "" : ", ") + other;
  throw Error("there is no " + what + " \"" + name + "\" on CUDA", "there are: " + others);
}

void run_linear(CudaCase& c) {
  choose({{"graded", run_graded}, {"gsi", run_gsi}, {"parts", run_linear_parts}},
         c.keys().require_string("mode"), c.name() + ": mode")(c);
}

}  // namespace

std::string no_cuda_reason() {
  try {
    const cuda::Context context(0);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void run_cuda_case(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  if (description.value("kind", "") == "batch")
    return run_batch_case(description, make_cuda_backend, repeat > 0 ? repeat : kBatchSamples,
                          results);
  const Runner runner = choose({{"attention", run_attention},
                                {"blocks", run_blocks},
                                {"dense-attention", run_dense_attention},
                                {"linear", run_linear},
                                {"model", run_model},
                                {"products", run_products},
                                {"refine", run_refine},
                                {"select", run_select}},
                               description.value("kind", "model"),
                               description.at("name").get<std::string>() + ": kind");
  CudaCase c(description, repeat, results);
  runner(c);
}

}  // namespace sluice::impl::bench
