// SPDX-License-Identifier: Apache-2.0
#include "cpu/merge_states.h"

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"

namespace treeattn::bindings {

void run_on_cpu(const MergeStatesParams& p) {
  constexpr int64_t kRowsPerThread = 256;
  parallel_for(p.num_rows, kRowsPerThread,
               [&](int64_t begin, int64_t end) { cpu::merge_states(p, begin, end); });
}

}  // namespace treeattn::bindings
