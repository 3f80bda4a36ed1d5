#include "cli/terminal/text_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace sluice::impl::cli {
namespace {

// Characters, which in UTF-8 begin with any byte but 10xxxxxx.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

std::string shown(const Cell& cell) {
  return cell.text + (cell.deviation.empty() ? "" : " ± " + cell.deviation) + cell.unit;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

Cell cell(const RunningMean& figure, Digits digits) {
  if (figure.count() == 0) return no_value();
  Cell out = cell(figure.mean(), digits);
  if (figure.count() > 1)
    out.deviation =
        fmt::format("{:.{}f}", digits.factor * figure.standard_deviation(), digits.decimals);
  return out;
}

Cell cell(double value, Digits digits) {
  return {fmt::format("{:.{}f}", digits.factor * value, digits.decimals), "", digits.unit};
}

Cell cell(int64_t value) { return words(fmt::format("{}", value)); }

void TextTable::add(std::vector<Cell> row) {
  SLUICE_CHECK(row.size() == columns_.size());
  rows_.push_back(std::move(row));
}

void TextTable::drop_empty_columns() {
  for (size_t c = columns_.size(); c-- > n_text_;) {
    const bool has_value = std::any_of(rows_.begin(), rows_.end(), [&](const auto& row) {
      return row[c].text != no_value().text;
    });
    if (has_value) continue;
    const auto at = static_cast<ptrdiff_t>(c);
    columns_.erase(columns_.begin() + at);
    for (auto& row : rows_) row.erase(row.begin() + at);
  }
}

std::string TextTable::markdown() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(std::max<size_t>(width_of(columns_[c]), 3));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], width_of(shown(row[c])));
  }
  std::string out = title_ + "\n\n|";
  for (size_t c = 0; c < columns_.size(); ++c)
    out += " " + padded(columns_[c], widths[c], c < n_text_) + " |";
  out += "\n|";
  for (size_t c = 0; c < columns_.size(); ++c)
    out += " " + std::string(widths[c] - 1, '-') + (c < n_text_ ? "- |" : ": |");
  for (const auto& row : rows_) {
    out += "\n|";
    for (size_t c = 0; c < row.size(); ++c)
      out += " " + padded(shown(row[c]), widths[c], c < n_text_) + " |";
  }
  return out + "\n";
}

std::string TextTable::csv() const {
  std::vector<bool> has_deviation(columns_.size());
  std::vector<std::string> names = columns_;
  for (size_t c = 0; c < columns_.size(); ++c)
    for (const auto& row : rows_) {
      if (!row[c].deviation.empty()) has_deviation[c] = true;
      if (!row[c].unit.empty()) names[c] = columns_[c] + " " + row[c].unit;
    }
  std::string out = "# " + title_ + "\n";
  const auto add_line = [&](const auto& text_of, const auto& deviation_of) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      out += (c > 0 ? "," : "") + quoted(text_of(c));
      if (has_deviation[c]) out += "," + quoted(deviation_of(c));
    }
    out += "\n";
  };
  add_line([&](size_t c) { return names[c]; }, [&](size_t c) { return names[c] + " sd"; });
  for (const auto& row : rows_)
    add_line([&](size_t c) { return row[c].text; }, [&](size_t c) { return row[c].deviation; });
  return out;
}

}  // namespace sluice::impl::cli
