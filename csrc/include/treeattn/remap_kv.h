// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/paged_kv.h"

namespace treeattn {

// One tensor to carry along: every (layer, K or V) pool and every scale plane.
struct RemapPlane {
  char* data;
  int64_t stride_block;  // bytes
  int64_t stride_row;    // bytes
  int64_t stride_head;   // bytes
  int num_heads;
  int head_bytes;  // contiguous bytes per head
};

// Moves the rows of each accepted path to logical slots context_len .. context_len + num_accepted.
struct RemapKvParams {
  const RemapPlane* planes;     // [num_planes]
  const int32_t* node_indptr;   // [num_requests + 1]
  const int32_t* context_lens;  // [num_requests]
  const int64_t* slot_mapping;  // [num_nodes]
  const int32_t* path;          // [num_requests, path_width], root first, padded with -1
  const int32_t* num_accepted;  // [num_requests]
  int32_t* status;              // [num_requests], of the acceptance; devices may write kInvalid
  int32_t* block_table;         // [num_requests, *], whole blocks may be re-pointed
  int32_t* moved;               // [num_requests], rows copied per plane
  int64_t stride_block_table;
  int64_t stride_path;
  int num_planes;
  int num_requests;
  int num_nodes;
  int path_width;  // max_depth + 1
  int max_blocks;
  int num_blocks;
  int block_size;
};

// int32 values of the workspace that devices need.
constexpr int64_t remap_kv_workspace_size(int64_t num_requests, int64_t path_width,
                                          int64_t num_blocks) {
  return num_requests * (18 * path_width + 7) + num_blocks + 2;
}

}  // namespace treeattn
