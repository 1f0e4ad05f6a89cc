// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace treeattn::micro {

using Cell = std::variant<std::string, int64_t, double>;
using Row = std::vector<Cell>;

struct Column {
  std::string name;
  int width;  // at least; the name's own length counts too
};

// Rows are printed as they are measured, so the widths are fixed in advance.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<Row>& rows() const { return rows_; }

  void print_header() const {
    Row names;
    for (const Column& column : columns_) names.emplace_back(column.name);
    print(names);
  }

  void add(Row row) {
    if (row.size() != columns_.size()) throw std::logic_error("a row must fill all columns");
    for (size_t i = 0; i < row.size(); ++i) {
      const double* number = std::get_if<double>(&row[i]);
      if (number != nullptr && !std::isfinite(*number)) {
        throw std::logic_error(columns_[i].name + " is not finite");
      }
    }
    print(row);
    rows_.push_back(std::move(row));
  }

 private:
  // Four significant digits without an exponent.
  static std::string text(double x) {
    const int decimals = x >= 1000 ? 0 : x >= 100 ? 1 : x >= 10 ? 2 : 3;
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.*f", decimals, x);
    return buffer;
  }
  static std::string text(int64_t x) { return std::to_string(x); }
  static std::string text(const std::string& x) { return x; }

  void print(const Row& row) const {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = std::visit([](const auto& x) { return text(x); }, row[i]);
      const auto width = std::max<size_t>(columns_[i].width, columns_[i].name.size());
      const std::string pad(width - std::min(width, cell.size()), ' ');
      const bool is_name = std::holds_alternative<std::string>(row[i]) && i == 0;
      line += is_name ? cell + pad : "  " + pad + cell;
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

}  // namespace treeattn::micro
