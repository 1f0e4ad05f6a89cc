// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace treeattn {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());  // reaches Python as ValueError
}

}  // namespace treeattn

// The message names the argument, the rule and the value seen.
#define TREEATTN_CHECK(condition, ...)               \
  do {                                               \
    if (!(condition)) ::treeattn::fail(__VA_ARGS__); \
  } while (false)
