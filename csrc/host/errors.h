// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace treeattn::host {

struct OutOfBlocks : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// KeyError in Python; also a ValueError, which is what a second free of a sequence is.
struct UnknownSequence : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace treeattn::host
