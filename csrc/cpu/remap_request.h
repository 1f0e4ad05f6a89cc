// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/plan_tree.h"
#include "treeattn/remap_kv.h"

namespace treeattn::cpu {

// One request's view of the batch.
struct RemapRequest {
  const int32_t* path;   // [num_rows] node ids
  const int64_t* slots;  // [num_nodes] physical slots
  int32_t* table;        // [max_blocks]
  int64_t context_len;
  int num_nodes;
  bool moves;
  int num_rows;  // root and accepted nodes; 0: nothing moves
  int max_blocks;
  int block_size;

  // Physical slot of a logical one.
  int64_t slot(int64_t logical) const {
    return int64_t{table[logical / block_size]} * block_size + logical % block_size;
  }
  // The node lies at logical slot context_len + node.
  bool is_default(int node) const {
    const int64_t logical = context_len + node;
    return logical / block_size < max_blocks && slot(logical) == slots[node];
  }
};

inline RemapRequest remap_request(const RemapKvParams& p, int request) {
  const int64_t start = p.node_indptr[request];
  const int32_t* path = p.path + request * p.stride_path;
  const int status = p.status[request];
  const bool moves = (status == kOk || status == kNonFinite || status == kNoTokenLeft) &&
                     p.path_width > 0 && path[0] != -1;
  const int accepted = p.num_accepted[request];
  const bool fits = accepted >= 0 && accepted < p.path_width;
  return {.path = path,
          .slots = p.slot_mapping + start,
          .table = p.block_table + request * p.stride_block_table,
          .context_len = p.context_lens[request],
          .num_nodes = static_cast<int>(p.node_indptr[request + 1] - start),
          .moves = moves,
          .num_rows = moves && fits ? accepted + 1 : 0,
          .max_blocks = p.max_blocks,
          .block_size = p.block_size};
}

}  // namespace treeattn::cpu
