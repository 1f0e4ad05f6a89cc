// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace treeattn::cuda {

// Rows of one CTA's tile of queries: (node, query head of the group), in depth-first order.
inline constexpr int kTileRows = 64;

// Counters by which CTAs of remap_kv learn of each other (cuda/remap_kv/roles.cuh).
inline constexpr int kRemapHeaderSize = 4;

// What the plan hands to other kernels beside the tensors of the contract, in one int32 buffer:
//   [kRemapHeaderSize] zero before the first remap_kv
//   [num_requests] the depth of the deepest node
//   [num_nodes]    place in depth-first order behind the last node of the node's subtree: a node
//                  at place p sees the node at place q <= p when p < subtree_end of that node
//   the rest       arrivals at each row tile whose keys are split; zero between launches
struct PlanWork {
  int32_t* data;
  int64_t size;

  constexpr int32_t* remap_header() const { return data; }
  constexpr int32_t* max_depths() const { return data + kRemapHeaderSize; }
  constexpr int32_t* subtree_ends(int num_requests) const { return max_depths() + num_requests; }
  constexpr int32_t* arrivals(int num_requests, int num_nodes) const {
    return subtree_ends(num_requests) + num_nodes;
  }
  constexpr int64_t num_arrivals(int num_requests, int num_nodes) const {
    return size - kRemapHeaderSize - num_requests - num_nodes;
  }
};

// Row tiles of request b are numbered from here on; no two requests share a number.
constexpr int64_t first_row_tile(int64_t first_node, int request, int group_size) {
  return first_node * group_size / kTileRows + request;
}

constexpr int64_t plan_work_size(int num_requests, int num_nodes, int num_qo_heads,
                                 int num_kv_heads) {
  const int64_t num_tiles = first_row_tile(num_nodes, num_requests, num_qo_heads / num_kv_heads);
  return int64_t{kRemapHeaderSize} + num_requests + num_nodes + (num_tiles + 1) * num_kv_heads;
}

}  // namespace treeattn::cuda
