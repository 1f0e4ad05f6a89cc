// SPDX-License-Identifier: Apache-2.0
#include "cpu/write_kv.h"

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"

namespace treeattn::bindings {

void run_on_cpu(const WriteKvParams& p) {
  const int64_t num_slots = int64_t{p.k_pool.num_blocks} * p.k_pool.block_size;
  for (int i = 0; i < p.num_nodes; ++i) {
    const int64_t slot = p.slot_mapping[i];
    TREEATTN_CHECK(slot >= -1 && slot < num_slots, "write_kv: slot_mapping[", i,
                   "] must be -1 or a slot of the pool (0 to ", num_slots - 1, "), got ", slot);
  }
  constexpr int64_t kRowsPerThread = 64;
  parallel_for(p.num_nodes, kRowsPerThread,
               [&](int64_t begin, int64_t end) { cpu::write_kv(p, begin, end); });
}

}  // namespace treeattn::bindings
