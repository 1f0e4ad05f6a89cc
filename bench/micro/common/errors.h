// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace treeattn::micro {

// What the caller of the program got wrong: one sentence, exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What this machine lacks for the program: one sentence, exit status 3.
class UnavailableError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace treeattn::micro
