// SPDX-License-Identifier: Apache-2.0
// Whether blocks at or after a request's context are its own.
//
// Each request writes its name on every such block: owners[block] = request * max_blocks + entry.
// Nothing has to be cleared before, because a name is believed only where the entry that it names
// does hold the block and is claimed. Then, after a barrier, a request that does not find its own
// name knows that another entry lists the block as well.
#pragma once

#include "cuda/remap_kv/request.cuh"

namespace treeattn::cuda {

// Calls f(entry, block) for what the request claims: the entries that its longest path could take,
// and those after them in which a node lies. Called by a whole warp; f by single lanes, for the
// latter once per node.
template <class F>
__device__ __forceinline__ void for_each_claim(const RemapKvParams& p, const RemapRequest& r,
                                               F&& f) {
  const int lane = threadIdx.x % kWarpSize;
  const int last = static_cast<int>(last_entry(p, r));
  for (int j = r.first_entry() + lane; j <= last; j += kWarpSize) f(j, load_global(r.table + j));
  for (int i = lane; i < r.num_nodes; i += kWarpSize) {
    const int64_t entry = (r.context_len + i) / p.block_size;
    if (entry <= last || !r.is_default(i)) continue;
    f(static_cast<int>(entry), load_global(r.table + entry));
  }
}

__device__ __forceinline__ uint32_t name_of(const RemapKvParams& p, int request, int entry) {
  return static_cast<uint32_t>(request) * static_cast<uint32_t>(p.max_blocks) +
         static_cast<uint32_t>(entry);
}

__device__ __forceinline__ void claim_blocks(const RemapKvParams& p, const RemapWorkspace& w,
                                             int request) {
  for_each_claim(p, remap_request(p, request), [&](int entry, int block) {
    store_global(w.owners + block, name_of(p, request, entry));
  });
}

__device__ __forceinline__ void refuse(const RemapWorkspace& w, int request) {
  atomicExch(w.conflicts + request, 1);
}

// After the barrier: both who lost a block's name and who has it are refused.
__device__ __forceinline__ void check_claims(const RemapKvParams& p, const RemapWorkspace& w,
                                             int request) {
  for_each_claim(p, remap_request(p, request), [&](int entry, int block) {
    const uint32_t owner = load_global(w.owners + block);
    if (owner == name_of(p, request, entry)) return;
    refuse(w, request);
    refuse(w, static_cast<int>(owner / static_cast<uint32_t>(p.max_blocks)));
  });
}

// The request that claims a block, or -1; whatever lies in owners.
__device__ __forceinline__ int claimant(const RemapKvParams& p, const RemapWorkspace& w,
                                        int block) {
  const uint32_t name = load_global(w.owners + block);
  const uint32_t request = name / static_cast<uint32_t>(p.max_blocks);
  const int entry = static_cast<int>(name % static_cast<uint32_t>(p.max_blocks));
  if (request >= static_cast<uint32_t>(p.num_requests)) return -1;
  if (load_global(w.states + request) != static_cast<int>(RequestState::kMoves)) return -1;
  const RemapRequest r = remap_request(p, static_cast<int>(request));
  if (entry < r.first_entry() || load_global(r.table + entry) != block) return -1;
  bool claimed = entry <= last_entry(p, r);
  // First node that may lie in the entry: the entry comes after the path, so after the context.
  const int64_t first = int64_t{entry} * p.block_size - r.context_len;
  for (int64_t i = first; !claimed && i < first + p.block_size && i < r.num_nodes; ++i) {
    claimed = i >= 0 && r.is_default(static_cast<int>(i));
  }
  return claimed ? static_cast<int>(request) : -1;
}

// Entries `part`, part + num_parts, ... of a moving request's committed blocks: whoever claims one
// of them is refused.
__device__ __forceinline__ void check_committed(const RemapKvParams& p, const RemapWorkspace& w,
                                                int request, int part, int num_parts) {
  const RemapRequest r = remap_request(p, request);
  for (int j = part; j < r.first_entry(); j += num_parts) {
    const int block = load_global(r.table + j);
    if (block < 0 || block >= p.num_blocks) continue;
    const int claiming = claimant(p, w, block);
    if (claiming >= 0) refuse(w, claiming);
  }
}

}  // namespace treeattn::cuda
