// SPDX-License-Identifier: Apache-2.0
// simt_checks: lists the checks. simt_checks NAME: runs one; 0 when it holds.
#include <cstdio>
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  using namespace checks;
  for (const auto* group : {&kCollectives, &kMemory, &kMatrices, &kMachine}) {
    for (const Check& check : *group) {
      if (argc < 2) std::puts(check.name);
      if (argc < 2 || std::strcmp(argv[1], check.name) != 0) continue;
      try {
        check.run();
      } catch (const std::exception& error) {
        std::printf("%s: %s\n", check.name, error.what());
        return 1;
      }
      return 0;
    }
  }
  return argc < 2 ? 0 : 2;
}
