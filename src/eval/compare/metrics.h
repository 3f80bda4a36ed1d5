// Every metric of an accelerated model against the exact one ("base"), one row each. What is
// summed, written to results.json and printed by `eval` follows from the row.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "backend/scores.h"

namespace sluice::impl {

struct Metric {
  // What is made of the numbers of all tokens. Quantiles and maxima need numbers that are not
  // negative, and have no standard error.
  enum class Statistic : uint8_t { kMean, kExpOfMean, kRootOfMean, kQuantile, kMaximum };
  // A share is written as it is and printed in percent.
  enum class Unit : uint8_t { kNumber, kShare };
  // kNeither: of the base alone.
  enum class Better : uint8_t { kLower, kHigher, kNeither };
  // Part of the summary of one plan, in the order printed; kNone: not printed there.
  enum class Section : uint8_t { kPerplexity, kDivergence, kNextToken, kNone };

  std::string_view key;             // its name, and in results.json
  std::string_view error_key = "";  // of its standard error in results.json; none: not written
  bool written = true;              // to results.json
  double (*of_token)(const TokenComparison&);
  Statistic statistic = Statistic::kMean;
  double share = 0;  // of kQuantile: of the tokens that are no larger
  Unit unit = Unit::kNumber;
  Better better = Better::kLower;
  Section section = Section::kNone;
  std::string_view name = "";  // in that section
  // A column of the lines after each window of one plan, in the order of rows; no heading: none.
  struct Running {
    std::string_view heading = "";
    int digits = 0;
    bool with_error = true;
  } running = {};
  // A column of the table of several plans; place: its order among the others, 0: none.
  struct Column {
    int place = 0;
    std::string_view heading = "";
    int width = 0, digits = 0;
  } column = {};

  constexpr bool has_histogram() const {
    return statistic == Statistic::kQuantile || statistic == Statistic::kMaximum;
  }
  constexpr bool has_error() const { return !has_histogram(); }
  constexpr bool has_running() const { return !running.heading.empty(); }
};

// The number of one token that a metric is made of.
namespace of_token {

constexpr double base_loss(const TokenComparison& token) { return token.base_loss; }
constexpr double loss(const TokenComparison& token) { return token.loss; }
constexpr double log_ratio(const TokenComparison& token) { return token.loss - token.base_loss; }
constexpr double kl(const TokenComparison& token) { return token.kl; }
constexpr double delta_p(const TokenComparison& token) { return token.delta_p; }
constexpr double delta_p_squared(const TokenComparison& token) {
  return token.delta_p * token.delta_p;
}
constexpr double same_top(const TokenComparison& token) { return token.same_top ? 1 : 0; }

}  // namespace of_token

inline constexpr auto kMetrics = std::to_array<Metric>({
    {.key = "loss_base",
     .written = false,
     .of_token = of_token::base_loss,
     .better = Metric::Better::kNeither},
    {.key = "ppl_base",
     .error_key = "ppl_base_stderr",
     .of_token = of_token::base_loss,
     .statistic = Metric::Statistic::kExpOfMean,
     .better = Metric::Better::kNeither,
     .section = Metric::Section::kPerplexity,
     .name = "PPL(base)",
     .running = {"PPL(base)", 4, /*with_error=*/false}},
    {.key = "ppl",
     .error_key = "ppl_stderr",
     .of_token = of_token::loss,
     .statistic = Metric::Statistic::kExpOfMean,
     .section = Metric::Section::kPerplexity,
     .name = "PPL",
     .running = {"PPL", 4}},
    {.key = "log_ppl_ratio",
     .written = false,
     .of_token = of_token::log_ratio,
     .section = Metric::Section::kPerplexity,
     .name = "ln(PPL/PPL(base))",
     .running = {"ln(PPL/PPL(base))", 5}},
    {.key = "ppl_ratio",
     .error_key = "ppl_ratio_stderr",
     .of_token = of_token::log_ratio,
     .statistic = Metric::Statistic::kExpOfMean,
     .section = Metric::Section::kPerplexity,
     .name = "PPL/PPL(base)",
     .column = {2, "PPL/PPL(base)", 19, 4}},
    {.key = "kl_mean",
     .error_key = "kl_stderr",
     .of_token = of_token::kl,
     .section = Metric::Section::kDivergence,
     .name = "Mean    KL",
     .running = {"KL divergence", 5},
     .column = {1, "KL", 21, 6}},
    {.key = "kl_max",
     .of_token = of_token::kl,
     .statistic = Metric::Statistic::kMaximum,
     .section = Metric::Section::kDivergence,
     .name = "Maximum KL"},
    {.key = "kl_p999",
     .of_token = of_token::kl,
     .statistic = Metric::Statistic::kQuantile,
     .share = 0.999,
     .section = Metric::Section::kDivergence,
     .name = "99.9%   KL"},
    {.key = "kl_p99",
     .of_token = of_token::kl,
     .statistic = Metric::Statistic::kQuantile,
     .share = 0.99,
     .section = Metric::Section::kDivergence,
     .name = "99.0%   KL"},
    {.key = "kl_p95",
     .of_token = of_token::kl,
     .statistic = Metric::Statistic::kQuantile,
     .share = 0.95,
     .section = Metric::Section::kDivergence,
     .name = "95.0%   KL"},
    {.key = "kl_p90",
     .of_token = of_token::kl,
     .statistic = Metric::Statistic::kQuantile,
     .share = 0.9,
     .section = Metric::Section::kDivergence,
     .name = "90.0%   KL"},
    {.key = "kl_median",
     .of_token = of_token::kl,
     .statistic = Metric::Statistic::kQuantile,
     .share = 0.5,
     .section = Metric::Section::kDivergence,
     .name = "Median  KL"},
    {.key = "delta_p_mean",
     .of_token = of_token::delta_p,
     .unit = Metric::Unit::kShare,
     .better = Metric::Better::kHigher,
     .section = Metric::Section::kNextToken,
     .name = "Mean    Δp"},
    {.key = "delta_p_rms",
     .of_token = of_token::delta_p_squared,
     .statistic = Metric::Statistic::kRootOfMean,
     .unit = Metric::Unit::kShare,
     .section = Metric::Section::kNextToken,
     .name = "RMS     Δp",
     .running = {"Δp RMS", 3}},
    {.key = "top1_agreement",
     .error_key = "top1_agreement_stderr",
     .of_token = of_token::same_top,
     .unit = Metric::Unit::kShare,
     .better = Metric::Better::kHigher,
     .section = Metric::Section::kNextToken,
     .name = "Same top p",
     .running = {"Same top p", 3},
     .column = {3, "same top p", 16, 3}},
});

// The row of a key. A key that no row has does not compile.
consteval const Metric& metric(std::string_view key) {
  for (const Metric& row : kMetrics)
    if (row.key == key) return row;
  throw std::invalid_argument("no metric has this key");
}

consteval bool each_is_complete() {
  return std::ranges::all_of(kMetrics, [](const Metric& row) {
    const bool quantile = row.statistic == Metric::Statistic::kQuantile;
    const bool error = !row.error_key.empty() || (row.has_running() && row.running.with_error);
    return quantile == (row.share > 0 && row.share <= 1) && (row.has_error() || !error) &&
           (row.section == Metric::Section::kNone) == row.name.empty();
  });
}
static_assert(
    each_is_complete(),
    "a quantile has its share, a section its name; where an error is written or printed the "
    "statistic has one");

consteval bool none_is_repeated() {
  return std::ranges::all_of(kMetrics, [](const Metric& row) {
    return std::ranges::count_if(kMetrics, [&](const Metric& other) {
             const int place = other.column.place;
             return other.key == row.key || (place > 0 && place == row.column.place);
           }) == 1;  // the row itself
  });
}
static_assert(none_is_repeated(), "keys and places of columns are used once each");

}  // namespace sluice::impl
