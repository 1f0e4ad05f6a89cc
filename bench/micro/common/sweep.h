// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "micro/common/arguments.h"
#include "micro/common/table.h"
#include "micro/common/timing.h"
#include "micro/common/workers.h"

namespace treeattn::micro {

// One run over all wanted cases: what to measure, how long, and where the rows go. A row is the
// cells of its case followed by the cells measured.
class Sweep {
 public:
  Sweep(const Arguments& arguments, Table& table)
      : quick(arguments.quick),
        budget(quick ? kQuickBudget : kFullBudget),
        filters_(arguments.filters),
        items_(arguments.items),
        table_(table) {}

  const bool quick;
  const Budget budget;
  Workers workers;

  // Whether every --filter occurs in the case, which begins with its item where there are items.
  bool wants(const Row& case_cells) const {
    if (!items_.empty() && std::find(items_.begin(), items_.end(),
                                     std::get<std::string>(case_cells[0])) == items_.end()) {
      return false;
    }
    const std::string text = case_text(case_cells);
    for (const std::string& filter : filters_) {
      if (text.find(filter) == std::string::npos) return false;
    }
    return true;
  }

  void add(Row case_cells, const Row& measured) {
    case_cells.insert(case_cells.end(), measured.begin(), measured.end());
    table_.add(std::move(case_cells));
  }

 private:
  // " smollm2 fp32 ctx512 nodes64 chain avx2 threads2 "
  std::string case_text(const Row& case_cells) const {
    std::string text = " ";
    for (size_t i = 0; i < case_cells.size(); ++i) {
      if (const auto* name = std::get_if<std::string>(&case_cells[i])) {
        text += *name;
      } else {
        text += table_.columns()[i].name + std::to_string(std::get<int64_t>(case_cells[i]));
      }
      text += " ";
    }
    return text;
  }

  std::vector<std::string> filters_;
  std::vector<std::string> items_;
  Table& table_;
};

}  // namespace treeattn::micro
