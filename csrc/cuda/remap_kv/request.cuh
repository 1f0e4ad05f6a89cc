// SPDX-License-Identifier: Apache-2.0
// One request's view of the batch, and what only the device can check of it.
#pragma once

#include "cuda/remap_kv/workspace.cuh"

namespace treeattn::cuda {

struct RemapRequest {
  const int32_t* path;   // [num_rows] node ids
  const int64_t* slots;  // [num_nodes] physical slots
  int32_t* table;        // [max_blocks]
  int64_t context_len;
  int num_nodes;
  int num_rows;  // root and accepted nodes
  int max_blocks;
  int block_size;

  // Physical slot of a logical one.
  __device__ __forceinline__ int64_t slot(int64_t logical) const {
    return int64_t{load_global(table + logical / block_size)} * block_size + logical % block_size;
  }
  // The node lies at logical slot context_len + node.
  __device__ __forceinline__ bool is_default(int node) const {
    const int64_t logical = context_len + node;
    return logical / block_size < max_blocks && slot(logical) == load_global(slots + node);
  }
  __device__ __forceinline__ int first_entry() const {
    return static_cast<int>(context_len / block_size);
  }
};

// The last entry of the table that this request's longest path could take.
__device__ __forceinline__ int64_t last_entry(const RemapKvParams& p, const RemapRequest& r) {
  const int longest = p.path_width < r.num_nodes ? p.path_width : r.num_nodes;
  return (r.context_len + longest - 1) / p.block_size;
}

// Of a request that moves.
__device__ __forceinline__ RemapRequest remap_request(const RemapKvParams& p, int request) {
  const int start = load_global(p.node_indptr + request);
  const int end = load_global(p.node_indptr + request + 1);
  return {.path = p.path + request * p.stride_path,
          .slots = p.slot_mapping + start,
          .table = p.block_table + request * p.stride_block_table,
          .context_len = load_global(p.context_lens + request),
          .num_nodes = end - start,
          .num_rows = load_global(p.num_accepted + request) + 1,
          .max_blocks = p.max_blocks,
          .block_size = p.block_size};
}

// What the CPU op checks of one request, before it looks at others. Called by a whole warp.
__device__ __forceinline__ RequestState state_of(const RemapKvParams& p, int request) {
  const int lane = threadIdx.x % kWarpSize;
  const int status = load_global(p.status + request);
  const bool moves = (status == kOk || status == kNonFinite || status == kNoTokenLeft) &&
                     p.path_width > 0 && load_global(p.path + request * p.stride_path) != -1;
  if (!moves) return RequestState::kStays;
  const int start = load_global(p.node_indptr + request);
  const int end = load_global(p.node_indptr + request + 1);
  if (start < 0 || end < start || end > p.num_nodes) return RequestState::kInvalid;
  const RemapRequest r = remap_request(p, request);
  if (r.num_rows < 1 || r.num_rows > p.path_width) return RequestState::kInvalid;
  if (r.num_nodes == 0 || r.context_len < 0) return RequestState::kInvalid;
  const int64_t last = last_entry(p, r);
  if (last >= p.max_blocks) return RequestState::kInvalid;
  bool valid = true;
  for (int k = lane; k < r.num_rows; k += kWarpSize) {
    const int node = load_global(r.path + k);
    const int previous = k > 0 ? load_global(r.path + k - 1) : -1;
    valid = valid && node > previous && node < r.num_nodes;
  }
  const int64_t num_slots = int64_t{p.num_blocks} * p.block_size;
  for (int i = lane; i < r.num_nodes; i += kWarpSize) {
    const int64_t slot = load_global(r.slots + i);
    valid = valid && slot >= 0 && slot < num_slots;
  }
  for (int64_t j = r.first_entry() + lane; j <= last; j += kWarpSize) {
    const int block = load_global(r.table + j);
    valid = valid && block >= 0 && block < p.num_blocks;
  }
  return __all_sync(kAllLanes, valid) ? RequestState::kMoves : RequestState::kInvalid;
}

}  // namespace treeattn::cuda
