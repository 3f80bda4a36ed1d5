// Tables for people and for spreadsheets: Markdown with aligned columns, or CSV.

#pragma once

#include <string>
#include <vector>

#include "eval/compare/running_mean.h"

namespace sluice::impl::cli {

struct Cell {
  std::string text;
  std::string deviation;  // empty: none
  std::string unit;       // of both
};

// A figure's mean, and its standard deviation when it has several numbers; a dash without any.
struct Digits {
  int decimals = 0;
  double factor = 1;  // 100 for percent
  const char* unit = "";
};
inline constexpr Digits kCount{.decimals = 1};  // of tokens: a mean
inline constexpr Digits kShare{.decimals = 3};
inline constexpr Digits kPercent{.decimals = 1, .factor = 100, .unit = "%"};
inline constexpr Digits kWholePercent{.decimals = 0, .factor = 100, .unit = "%"};  // the paper's
Cell cell(const RunningMean& figure, Digits digits);
Cell cell(double value, Digits digits);
Cell cell(int64_t value);
inline Cell no_value() { return {"-", "", ""}; }
inline Cell words(std::string text) { return {std::move(text), "", ""}; }

class TextTable {
 public:
  // The first n_text columns are text, the others numbers.
  TextTable(std::string title, std::vector<std::string> columns, size_t n_text = 1)
      : title_(std::move(title)), columns_(std::move(columns)), n_text_(n_text) {}

  void add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }
  // Leaves out columns of numbers in which no row has a value.
  void drop_empty_columns();

  std::string markdown() const;  // "mean ± deviation"
  // The title behind #; deviations in columns of their own, units in the columns' names.
  std::string csv() const;

 private:
  std::string title_;
  std::vector<std::string> columns_;
  size_t n_text_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace sluice::impl::cli
