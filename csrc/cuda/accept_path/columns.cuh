// SPDX-License-Identifier: Apache-2.0
// DraftLaws::columns from DraftLaws::ids, in two launches.
#pragma once

#include "cuda/common/ptx.cuh"
#include "treeattn/accept_path.h"

namespace treeattn::cuda {

inline constexpr int kColumnThreads = 256;

// A thread per id of the target, and one more that clears `bad_ids`.
__global__ __launch_bounds__(kColumnThreads) void accept_path_clear_columns_kernel(
    int32_t* const columns, int32_t* const bad_ids, int vocab_size) {
  const int64_t id = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (id < vocab_size) store_global(columns + id, -1);
  if (id == 0) store_global(bad_ids, 0);
}

// A thread per column. `bad_ids` becomes 1 where an id is out of range, or named twice.
__global__ __launch_bounds__(kColumnThreads) void accept_path_fill_columns_kernel(
    const int64_t* const ids, int num_columns, int32_t* const columns, int32_t* const bad_ids,
    int vocab_size) {
  const int64_t column = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (column >= num_columns) return;
  const int64_t id = load_global(ids + column);
  const bool fits = id >= 0 && id < vocab_size;
  if (fits && atomicExch(columns + id, static_cast<int>(column)) < 0) return;
  store_global(bad_ids, 1);
}

}  // namespace treeattn::cuda
