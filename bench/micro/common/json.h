// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <iomanip>
#include <ostream>
#include <string>
#include <string_view>

#include "micro/common/table.h"

namespace treeattn::micro {

namespace json {

inline void write(std::ostream& out, const std::string& text) { out << std::quoted(text); }
inline void write(std::ostream& out, int64_t number) { out << number; }
inline void write(std::ostream& out, double number) {
  char buffer[64];  // to_chars: shortest, exact, and the same in every locale
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  out << std::string_view(buffer, end - buffer);
}

}  // namespace json

// An array with one object per row, keyed by column.
inline void write_json(std::ostream& out, const Table& table) {
  out << "[";
  const char* separator = "\n";
  for (const Row& row : table.rows()) {
    out << separator << "  {";
    separator = ",\n";
    for (size_t i = 0; i < row.size(); ++i) {
      out << (i ? ", " : "") << std::quoted(table.columns()[i].name) << ": ";
      std::visit([&out](const auto& cell) { json::write(out, cell); }, row[i]);
    }
    out << "}";
  }
  out << "\n]\n";
}

}  // namespace treeattn::micro
