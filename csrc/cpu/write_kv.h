// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "treeattn/write_kv.h"

namespace treeattn::cpu {

// Stores nodes [begin, end); their slots are valid or -1.
void write_kv(const WriteKvParams& p, int64_t begin, int64_t end);

}  // namespace treeattn::cpu
