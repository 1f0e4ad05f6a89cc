// SPDX-License-Identifier: Apache-2.0
// Checks of the emulator: kernels with known answers. Each runs in a process of its own, so that
// TREEATTN_SIMT_ORDER and the counters are its own.
#pragma once

#include <functional>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"

namespace checks {

using namespace treeattn::cuda;

struct Check {
  const char* name;
  void (*run)();
};
extern const std::vector<Check> kCollectives, kMemory, kMatrices, kMachine;

template <class A, class B>
void expect_equal(const A& got, const B& wanted, const std::string& what,
                  const std::source_location& site = std::source_location::current()) {
  if (got == wanted) return;
  std::ostringstream message;
  message << "line " << site.line() << ": " << what << " is " << got << ", should be " << wanted;
  throw std::runtime_error(message.str());
}

inline void expect(bool holds, const std::string& what,
                   const std::source_location& site = std::source_location::current()) {
  if (!holds) throw std::runtime_error("line " + std::to_string(site.line()) + ": " + what);
}

// `run` must throw, with each of `words` in the message.
inline void expect_fault(const std::function<void()>& run, const std::vector<std::string>& words,
                         const std::source_location& site = std::source_location::current()) {
  std::string message;
  try {
    run();
  } catch (const std::exception& error) {
    message = error.what();
  }
  expect(!message.empty(), "no error was raised", site);
  for (const std::string& word : words) {
    expect(message.find(word) != std::string::npos, "'" + word + "' is not in: " + message, site);
  }
}

inline uint32_t bits_of(float f) { return __float_as_uint(f); }
inline constexpr uint32_t kPoison = 0xffffffff;

}  // namespace checks
