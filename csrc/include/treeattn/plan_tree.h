// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace treeattn {

// Per-request status, shared by the plan and the acceptance.
enum Status : int32_t {
  kOk = 0,
  kNonFinite = 1,  // NaN or +inf at an allowed id of a row that was read
  kNoTokenLeft = 2,
  kInactive = 3,  // empty tree
  kInvalid = 4,   // bad input that only the device can see
};

// Keys of one request. The rest of an int32 is room for the tile that kernels look ahead.
inline constexpr int32_t kMaxKeys = INT32_MAX - 4096;

// Everything about the batch that follows from `parents`, made once per step.
struct PlanTreeParams {
  const int32_t* parents;       // [num_nodes], within the request; -1 at the root
  const int32_t* node_indptr;   // [num_requests + 1]
  const int32_t* context_lens;  // [num_requests]
  const int32_t* block_table;   // [num_requests, max_blocks]
  const int64_t* slots_in;      // [num_nodes], or nullptr: logical slot context_len + node
  int32_t* depths;              // [num_nodes]
  int32_t* positions;           // [num_nodes], context_len + depth
  int64_t* slot_mapping;        // [num_nodes], physical slots
  uint32_t* ancestors;          // [num_nodes, num_words], self bit included
  int32_t* order;               // [num_nodes], node ids of each request in depth-first order
  int32_t* status;              // [num_requests], kOk | kInactive | kInvalid
  int64_t stride_block_table;
  int num_requests;
  int num_nodes;
  int num_words;
  int max_blocks;
  int block_size;
  int max_depth;  // -1: not given
};

}  // namespace treeattn
