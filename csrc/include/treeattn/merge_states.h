// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"

namespace treeattn {

// An attention result to read. Strides in elements; head_dim is contiguous.
struct AttentionState {
  const void* out;   // [num_nodes, num_heads, head_dim]
  const float* lse;  // [num_nodes, num_heads]
  int64_t stride_out_node;
  int64_t stride_out_head;
  int64_t stride_lse_node;
  int64_t stride_lse_head;
};

// Combines two attention results over disjoint key sets by their log-sum-exps.
// A state (0, -inf) is the identity, bitwise.
struct MergeStatesParams {
  AttentionState a;
  AttentionState b;
  void* out;         // [num_nodes, num_heads, head_dim], contiguous
  float* lse;        // [num_nodes, num_heads], contiguous
  int64_t num_rows;  // num_nodes * num_heads
  int num_heads;
  int head_dim;
  DType dtype;
};

}  // namespace treeattn
