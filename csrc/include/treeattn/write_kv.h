// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/paged_kv.h"

namespace treeattn {

// Stores k[i] and v[i] at slot_mapping[i] of the pools; slot -1 skips the row.
struct WriteKvParams {
  const void* k;  // [num_nodes, num_kv_heads, head_dim], dtype of the pool, or any for fp8 pools
  const void* v;
  const int64_t* slot_mapping;  // [num_nodes]
  KvPool k_pool;
  KvPool v_pool;
  int64_t stride_k_node;
  int64_t stride_k_head;
  int64_t stride_v_node;
  int64_t stride_v_head;
  int num_nodes;
  DType dtype;  // of k and v
};

}  // namespace treeattn
