// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace treeattn::micro {

struct Arguments {
  bool help = false;
  bool quick = false;
  std::string json_path;             // empty: no file
  std::vector<std::string> filters;  // a row must match all of them
};

// What the caller of the program got wrong: one sentence, exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr std::string_view kOptions =
    "  --quick         a few cases with short timings, under 10 s\n"
    "  --filter TEXT   only rows whose case contains TEXT; may be repeated, all must match.\n"
    "                  A case reads like the row's first columns, one space around each word:\n"
    "                  names as they are, numbers behind their column's name. Blanks count:\n"
    "                  ' threads1 ' is not ' threads16 '\n"
    "  --json FILE     also write the rows there, as an array of objects with the table's columns\n"
    "  --help          this text\n";

inline Arguments parse_arguments(int argc, char** argv) {
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
