// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "micro/common/arguments.h"
#include "micro/common/check.h"
#include "micro/common/json.h"
#include "micro/common/sweep.h"
#include "micro/common/table.h"

namespace treeattn::micro {

struct Program {
  std::string name;
  std::string description;  // whole lines
  std::vector<Column> columns;
  void (*check)(Check&);
  void (*sweep)(Sweep&);
  std::vector<std::string> items = {};  // that --items may name; rows begin with theirs
  std::string oracle = "the scalar loop";
  void (*require)() = nullptr;  // throws UnavailableError where the program cannot run
};

inline void print_help(const Program& program) {
  const char* const items = program.items.empty() ? "" : " [--items LIST]";
  std::printf("%s [--quick] [--check-only]%s [--filter TEXT] [--json FILE]\n\n%s\n",
              program.name.c_str(), items, program.description.c_str());
  if (!program.items.empty()) {
    std::printf("  --items LIST    comma-separated, of");
    for (const std::string& item : program.items) std::printf(" %s", item.c_str());
    std::printf("\n");
  }
  std::printf("%.*s", static_cast<int>(kOptions.size()), kOptions.data());
}

// Exit status: 0, 1 when the self-check or a measurement fails, 2 when the arguments are wrong, 3
// when this machine lacks something.
inline int run_program(const Program& program, int argc, char** argv) try {
  const Arguments arguments = parse_arguments(argc, argv, program.items);
  if (arguments.help) {
    print_help(program);
    return 0;
  }
  if (program.require != nullptr) program.require();
  std::ofstream file;
  if (!arguments.json_path.empty()) {
    file.open(arguments.json_path);
    if (!file) throw UsageError("--json: cannot write " + arguments.json_path);
  }
  Check check(program.oracle);
  program.check(check);
  if (!check.report()) return 1;
  if (arguments.check_only) return 0;

  Table table(program.columns);
  Sweep sweep(arguments, table);
  table.print_header();
  program.sweep(sweep);
  if (table.rows().empty()) throw UsageError("--filter: no case matches; --help says how");
  if (file.is_open()) {
    write_json(file, table);
    if (!file.flush()) throw std::runtime_error("cannot write " + arguments.json_path);
  }
  return 0;
} catch (const UsageError& error) {
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), error.what());
  return 2;
} catch (const UnavailableError& error) {
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), error.what());
  return 3;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), error.what());
  return 1;
}

}  // namespace treeattn::micro
