// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace treeattn::cuda {

// What kernels report through count(). Nothing on a GPU; the host emulator adds them up for tests.
enum class Counter : int {
  kTiles,        // key tiles multiplied
  kMaskedTiles,  // of those, tiles that ran mask code
  kRowsRead,     // rows of logits read
  kDraftRowsRead,
  kRowsMoved,  // KV rows copied, per plane
  kNumCounters,
};

inline constexpr const char* kCounterNames[] = {"tiles", "masked_tiles", "rows_read",
                                                "draft_rows_read", "rows_moved"};
static_assert(sizeof(kCounterNames) / sizeof(kCounterNames[0]) ==
              static_cast<int>(Counter::kNumCounters));

}  // namespace treeattn::cuda
