#include "joint_cases.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "backend/backend.h"
#include "eval/timing.h"
#include "table.h"

namespace sluice::impl::bench {
namespace {

// As in attention_layer.cpp: members at cosines of 0.995 down to 0.76 to their centre, tau 0.5.
constexpr double kTau = 0.5;
constexpr float kLeastNoise = 0.1f, kMostNoise = 0.86f;

struct JointCase {
  int64_t n_tokens, d_model, n_reps, rank;
  double rest, common;
  DType dtype;
};

// Clusters at even distances around random directions that share one. The basis is the first axes:
// what it is made of does not matter to the work.
Buffer planted_rows(const JointCase& c) {
  Buffer rows = host_buffer(DType::kF32, {c.n_tokens, c.d_model});
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> noise(kLeastNoise, kMostNoise);
  const auto rank = static_cast<double>(c.rank), others = static_cast<double>(c.d_model) - rank;
  // The norm of a centre is 1, and its common part lies along the first axis.
  const double rest = c.rest, own = std::sqrt(std::max(0.0, 1 - c.common - rest * rest));
  const auto in = static_cast<float>(own / std::sqrt(rank));
  const auto off = static_cast<float>(others > 0 ? rest / std::sqrt(others) : 0);
  std::vector<const float*> centres;
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    float* row = rows.view().row<float>(t);
    const bool is_new = t == 0 || t * c.n_reps / c.n_tokens > (t - 1) * c.n_reps / c.n_tokens;
    if (is_new) centres.push_back(row);
    const float* centre = centres[random() % centres.size()];
    const float size = noise(random);
    for (int64_t i = 0; i < c.d_model; ++i) {
      const float random_part = normal(random) * (i < c.rank ? in : off);
      row[i] = is_new ? random_part : centre[i] + size * random_part;
    }
    if (is_new) row[0] += static_cast<float>(std::sqrt(c.common));
  }
  return rows;
}

std::shared_ptr<const SelectionBasis> first_axes(const JointCase& c) {
  std::vector<float> axes(static_cast<size_t>(c.rank * c.d_model));
  for (int64_t i = 0; i < c.rank; ++i) axes[static_cast<size_t>(i * c.d_model + i)] = 1;
  return std::make_shared<SelectionBasis>(c.rank, c.d_model, std::move(axes));
}

void run_case(const std::string& name, const JointCase& c, int repeat, Table& table,
              nlohmann::json& results) {
  const auto backend = make_cpu_backend(c.dtype);
  const Buffer residual = planted_rows(c);
  const Buffer rows = backend->allocate(c.dtype, {c.n_tokens, c.d_model});
  backend->convert(residual.view(), rows.view());
  SelectorSpec spec;
  spec.taus = {kTau};
  spec.d_model = c.d_model;
  const auto plain = backend->make_selector(spec);
  spec.basis = first_axes(c);
  const auto joint = backend->make_selector(spec);
  spec.basis_use = BasisUse::kAlways;
  const auto always = backend->make_selector(spec);
  const auto work = [&](Selector& selector) {
    return [&] {
      selector.reset();
      selector.extend({.rows = rows.view(), .residual = residual.view(), .inherited = {}});
    };
  };
  const auto samples = time_interleaved(repeat, {work(*plain), work(*joint), work(*always)});
  const auto share = [](const Selector& selector) {
    const auto dropped = static_cast<double>(selector.pairs_dropped());
    return dropped / (dropped + static_cast<double>(selector.products()));
  };
  const Ratio speedup = ratio_of(samples[0], samples[1]), forced = ratio_of(samples[0], samples[2]);
  const int64_t n_reps = plain->sets()[0].n_clusters;
  const auto speedup_cell = [](const Ratio& ratio) {
    return fmt::format("{:.2f}x ({:.2f}-{:.2f})", ratio.middle, ratio.low, ratio.high);
  };
  table.row({fmt::format("{} {}", name, dtype_name(c.dtype)), fmt::format("{}", c.d_model),
             fmt::format("{}", c.n_tokens),
             fmt::format("{:.3f}", static_cast<double>(n_reps) / static_cast<double>(c.n_tokens)),
             fmt::format("{}", c.rank), fmt::format("{:.2f}", c.rest),
             fmt::format("{:.2f}", c.common), fmt::format("{:.1f}", median(samples[0])),
             fmt::format("{:.1f}%", 100 * share(*joint)), speedup_cell(speedup),
             fmt::format("{:.1f}%", 100 * share(*always)), speedup_cell(forced)});
  const auto record = [&](const char* mode, const std::vector<double>& ms, const Selector& selector,
                          const Ratio& ratio) {
    results["cases"].push_back(
        {{"name", fmt::format("{} T{} d{} k{} rest {} common {}", name, c.n_tokens, c.d_model,
                              c.rank, c.rest, c.common)},
         {"dtype", dtype_name(c.dtype)},
         {"n_tokens", c.n_tokens},
         {"d_model", c.d_model},
         {"n_reps", n_reps},
         {"rank", c.rank},
         {"mode", mode},
         {"samples_ms", ms},
         {"median_ms", median(ms)},
         {"tokens_per_s", 1e3 * static_cast<double>(c.n_tokens) / median(ms)},
         {"share_dropped", share(selector)},
         {"speedup_vs_plain", ratio.middle},
         {"speedup_low", ratio.low},
         {"speedup_high", ratio.high}});
  };
  record("select", samples[0], *plain, {1, 1, 1});
  record("select, joint", samples[1], *joint, speedup);
  record("select, joint always", samples[2], *always, forced);
}

}  // namespace

void run_joint_cases(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  const std::string name = description.at("name");
  Table table(name, results);
  table.say(fmt::format(
      "selection in ms; share of pairs dropped and speed-up (range) with a basis, where "
      "it pays and always; {} samples each",
      repeat));
  table.columns({"case", "d", "T", "r/T", "k", "rest", "common", "plain", "dropped", "joint",
                 "dropped", "always"});
  for (const std::string dtype : description.at("dtypes"))
    for (const int64_t d_model : description.at("d_model"))
      for (const int64_t n_tokens : description.at("n_tokens"))
        for (const double redundancy : description.at("redundancy"))
          for (const auto& rows : description.at("joint").at("rows"))
            for (const double rank : description.at("joint").at("rank"))
              run_case(name,
                       {.n_tokens = n_tokens,
                        .d_model = d_model,
                        .n_reps = std::llround(redundancy * static_cast<double>(n_tokens)),
                        .rank = std::llround(rank * static_cast<double>(d_model)),
                        .rest = rows.at("rest"),
                        .common = rows.at("common"),
                        .dtype = dtype == "bf16" ? DType::kBF16 : DType::kF32},
                       repeat, table, results);
}

}  // namespace sluice::impl::bench
