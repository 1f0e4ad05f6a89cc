// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"

namespace treeattn {

// One layer's K or V pool: [num_blocks, block_size, num_kv_heads, head_dim]. Strides in elements,
// any in the first three dimensions; head_dim is contiguous.
struct KvPool {
  void* data;
  const float* scale;  // fp8 pools: [num_kv_heads] spaced by stride_scale; nullptr means 1
  int64_t stride_block;
  int64_t stride_row;
  int64_t stride_head;
  int64_t stride_scale;  // 0 broadcasts one value
  int num_blocks;
  int block_size;
  int num_kv_heads;
  int head_dim;
  DType dtype;
};

// A physical slot is block * block_size + row.
constexpr int64_t kv_offset(int64_t slot, int head, int block_size, int64_t stride_block,
                            int64_t stride_row, int64_t stride_head) {
  return slot / block_size * stride_block + slot % block_size * stride_row + head * stride_head;
}

constexpr int64_t kv_offset(const KvPool& pool, int64_t block, int64_t row, int head) {
  return block * pool.stride_block + row * pool.stride_row + head * pool.stride_head;
}

constexpr int64_t kv_offset(const KvPool& pool, int64_t slot, int head) {
  return kv_offset(slot, head, pool.block_size, pool.stride_block, pool.stride_row,
                   pool.stride_head);
}

// A float per (slot, kv head) that travels with an fp8 pool: [num_blocks, block_size,
// num_kv_heads].
struct ScalePlane {
  float* data;
  int64_t stride_block;
  int64_t stride_row;
  int64_t stride_head;
};

}  // namespace treeattn
