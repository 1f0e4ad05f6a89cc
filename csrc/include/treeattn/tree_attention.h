// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/paged_kv.h"

namespace treeattn {

// Node i of a request sees logical slots 0 .. context_len-1 and the slots of its ancestors and
// itself.
struct TreeAttentionParams {
  const void* q;  // [num_nodes, num_qo_heads, head_dim]
  void* out;      // as q
  float* lse;     // [num_nodes, num_qo_heads] or nullptr
  KvPool k_pool;
  KvPool v_pool;
  const int32_t* node_indptr;   // [num_requests + 1]
  const int32_t* context_lens;  // [num_requests]
  const int32_t* block_table;   // [num_requests, max_blocks]
  const int32_t* depths;        // [num_nodes]
  const int64_t* slot_mapping;  // [num_nodes]
  const uint32_t* ancestors;    // [num_nodes, num_words]
  const int32_t* order;         // [num_nodes]
  const int32_t* status;        // [num_requests]
  const float* sinks;           // [num_qo_heads] or nullptr
  const float* alibi_slopes;    // [num_qo_heads] or nullptr
  int64_t stride_q_node;
  int64_t stride_q_head;
  int64_t stride_out_node;
  int64_t stride_out_head;
  int64_t stride_block_table;
  int num_requests;
  int num_nodes;
  int num_words;
  int max_blocks;  // columns of block_table
  int num_qo_heads;
  int window;  // keys at position > query position - window are seen; 0: no window
  float sm_scale;
  float logits_soft_cap;  // 0: none
  DType dtype;            // of q and out
};

}  // namespace treeattn
