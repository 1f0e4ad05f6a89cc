// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"

namespace treeattn {

// Combines two attention results over disjoint key sets by their log-sum-exps.
// A state (0, -inf) is the identity, bitwise.
struct MergeStatesParams {
  const void* out_a;   // [num_nodes, num_heads, head_dim]
  const float* lse_a;  // [num_nodes, num_heads]
  const void* out_b;
  const float* lse_b;
  void* out;
  float* lse;
  int64_t num_rows;  // num_nodes * num_heads, all tensors contiguous
  int head_dim;
  DType dtype;
};

}  // namespace treeattn
