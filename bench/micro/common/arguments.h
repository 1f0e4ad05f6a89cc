// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "micro/common/errors.h"

namespace treeattn::micro {

struct Arguments {
  bool help = false;
  bool quick = false;
  bool check_only = false;
  std::string json_path;             // empty: no file
  std::vector<std::string> filters;  // a row must match all of them
  std::vector<std::string> items;    // only these; empty: all
};

constexpr std::string_view kOptions =
    "  --quick         a few cases with short timings, under 10 s\n"
    "  --check-only    the self-check, no timings\n"
    "  --filter TEXT   only rows whose case contains TEXT; may be repeated, all must match.\n"
    "                  A case reads like the row's first columns, one space around each word:\n"
    "                  names as they are, numbers behind their column's name. Blanks count:\n"
    "                  ' threads1 ' is not ' threads16 '\n"
    "  --json FILE     also write the rows there, as an array of objects with the table's columns\n"
    "  --help          this text\n";

// "A1,C2" to its words, each of which must be known.
inline std::vector<std::string> parse_items(const std::string& text,
                                            const std::vector<std::string>& known) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
    if (std::find(known.begin(), known.end(), items.back()) != known.end()) continue;
    std::string list;
    for (const std::string& item : known) list += (list.empty() ? "" : ", ") + item;
    throw UsageError("--items: must be of " + list + ", got '" + items.back() + "'");
  }
  return items;
}

// `items`: what --items may name; a program without items has no such option.
inline Arguments parse_arguments(int argc, char** argv, const std::vector<std::string>& items) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&] {
      if (++i == argc || *argv[i] == '\0') throw UsageError(option + " needs a value");
      return std::string(argv[i]);
    };
    if (option == "--help") {
      arguments.help = true;
    } else if (option == "--quick") {
      arguments.quick = true;
    } else if (option == "--check-only") {
      arguments.check_only = true;
    } else if (option == "--items" && !items.empty()) {
      arguments.items = parse_items(value(), items);
    } else if (option == "--json") {
      arguments.json_path = value();
    } else if (option == "--filter") {
      arguments.filters.push_back(value());
    } else {
      throw UsageError("unknown option '" + option + "'; --help lists what there is");
    }
  }
  return arguments;
}

}  // namespace treeattn::micro
