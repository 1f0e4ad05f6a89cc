// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "treeattn/merge_states.h"

namespace treeattn::cpu {

// Merges rows [begin, end).
void merge_states(const MergeStatesParams& p, int64_t begin, int64_t end);

}  // namespace treeattn::cpu
