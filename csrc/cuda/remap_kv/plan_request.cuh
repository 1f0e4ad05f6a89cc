// SPDX-License-Identifier: Apache-2.0
// What one request re-points and moves. Every function is called by a whole warp.
#pragma once

#include "cuda/remap_kv/request.cuh"

namespace treeattn::cuda {

// Which whole blocks of the path become which block of nodes. `first` is the first entry of the
// table that lies wholly after the context; `num_whole` entries from there on are filled by the
// path. Entry first + t takes the block of entry sources[t] (-1: keeps its own), which gets in
// exchange what first + t had; targets[s - first] = t is the inverse, up to the entry that the path
// fills in part. Sources ascend and lie behind their targets, so exchanges one after the other, as
// the CPU makes them, form chains: all but the last of a chain pass on what they got.
struct Repointing {
  int* sources;
  int* targets;
  int64_t first;
  int num_whole;

  __device__ __forceinline__ bool is_target(int64_t t) const {
    return t >= 0 && t < num_whole && load_global(sources + t) >= 0;
  }
  // What the end of the chain gets in which t is a target.
  __device__ __forceinline__ int from_start_of_chain(const RemapRequest& r, int t) const {
    for (int before = load_global(targets + t); before >= 0; before = load_global(targets + t)) {
      t = before;
    }
    return load_global(r.table + first + t);
  }
  __device__ __forceinline__ int block_after(const RemapRequest& r, int64_t entry) const {
    const int64_t t = entry - first;
    if (is_target(t)) return load_global(r.table + load_global(sources + t));
    const int target = t >= 0 && t <= num_whole ? load_global(targets + t) : -1;
    return target >= 0 ? from_start_of_chain(r, target) : load_global(r.table + entry);
  }
};

__device__ __forceinline__ Repointing repoint_blocks(const RemapKvParams& p,
                                                     const RemapWorkspace& w, int request,
                                                     const RemapRequest& r) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t room = int64_t{request} * (p.path_width + 1);
  const int64_t first = (r.context_len + r.block_size - 1) / r.block_size;
  const int64_t end = (r.context_len + r.num_rows) / r.block_size;
  const Repointing repointing{.sources = w.sources + room,
                              .targets = w.targets + room,
                              .first = first,
                              .num_whole = end > first ? static_cast<int>(end - first) : 0};
  for (int t = lane; t < repointing.num_whole; t += kWarpSize) {
    const int row = static_cast<int>((first + t) * r.block_size - r.context_len);
    const int64_t source = (r.context_len + load_global(r.path + row)) / r.block_size;
    bool whole = source > first + t;
    for (int i = 0; whole && i < r.block_size; ++i) {
      const int node = load_global(r.path + row + i);
      whole = r.context_len + node == source * r.block_size + i && r.is_default(node);
    }
    store_global(repointing.sources + t, whole ? static_cast<int>(source) : -1);
  }
  for (int t = lane; t <= repointing.num_whole; t += kWarpSize) {
    store_global(repointing.targets + t, -1);
  }
  __syncwarp(kAllLanes);  // sources are known, targets are empty
  for (int t = lane; t < repointing.num_whole; t += kWarpSize) {
    const int64_t source = load_global(repointing.sources + t) - first;
    if (source > t && source <= repointing.num_whole) {
      store_global(repointing.targets + source, t);
    }
  }
  __syncwarp(kAllLanes);  // targets are known
  return repointing;
}

// Lists what the exchanges leave in the table. Lists are packed lane by lane, chunk by chunk.
__device__ __forceinline__ void plan_table(const RemapKvParams& p, const RemapWorkspace& w,
                                           int request, const RemapRequest& r,
                                           const Repointing& repointing) {
  const int lane = threadIdx.x % kWarpSize;
  TableWrite* const writes = w.writes + int64_t{request} * 2 * p.path_width;
  int num_writes = 0;
  const auto append = [&](bool has_one, int64_t entry, int block) {
    const unsigned lanes = __ballot_sync(kAllLanes, has_one);
    if (has_one) {
      const int at = num_writes + __popc(lanes & ((1u << lane) - 1));
      store_global(writes + at, TableWrite{static_cast<int>(entry), block});
    }
    num_writes += __popc(lanes);
  };
  for (int begin = 0; begin < repointing.num_whole; begin += kWarpSize) {
    const int t = begin + lane;
    const bool exchanged = repointing.is_target(t);
    const int source = exchanged ? load_global(repointing.sources + t) : 0;
    append(exchanged, repointing.first + t, exchanged ? load_global(r.table + source) : 0);
    const bool ends_chain = exchanged && !repointing.is_target(source - repointing.first);
    append(ends_chain, source, ends_chain ? repointing.from_start_of_chain(r, t) : 0);
  }
  if (lane == 0) store_global(w.num_writes + request, num_writes);
}

__device__ __forceinline__ void plan_moves(const RemapKvParams& p, const RemapWorkspace& w,
                                           int request, const RemapRequest& r,
                                           const Repointing& repointing) {
  const int lane = threadIdx.x % kWarpSize;
  RowMove* const moves = w.moves + int64_t{request} * p.path_width;
  int num_moves = 0;
  bool custom = false;
  for (int begin = 0; begin < r.num_rows; begin += kWarpSize) {
    const int k = begin + lane;
    int64_t src = 0, dst = 0;
    bool is_default = true;
    if (k < r.num_rows) {
      const int node = load_global(r.path + k);
      const int64_t logical = r.context_len + k;
      is_default = r.is_default(node);
      src = load_global(r.slots + node);
      dst = int64_t{repointing.block_after(r, logical / r.block_size)} * r.block_size +
            logical % r.block_size;
    }
    const unsigned lanes = __ballot_sync(kAllLanes, src != dst);
    custom = custom || __any_sync(kAllLanes, src != dst && !is_default);
    if (src != dst) {
      const int at = num_moves + __popc(lanes & ((1u << lane) - 1));
      store_global(moves + at, RowMove{.src_block = static_cast<int>(src / r.block_size),
                                       .src_row = static_cast<int>(src % r.block_size),
                                       .dst_block = static_cast<int>(dst / r.block_size),
                                       .dst_row = static_cast<int>(dst % r.block_size)});
    }
    num_moves += __popc(lanes);
  }
  if (lane == 0) {
    store_global(w.num_moves + request, num_moves);
    store_global(w.custom + request, custom);
  }
}

__device__ __forceinline__ void plan_request(const RemapKvParams& p, const RemapWorkspace& w,
                                             int request, RequestState state) {
  if (state != RequestState::kMoves) {
    if (threadIdx.x % kWarpSize == 0) {
      store_global(w.num_moves + request, 0);
      store_global(w.num_writes + request, 0);
      store_global(w.custom + request, 0);
    }
    return;
  }
  const RemapRequest r = remap_request(p, request);
  const Repointing repointing = repoint_blocks(p, w, request, r);
  plan_table(p, w, request, r, repointing);
  plan_moves(p, w, request, r, repointing);
}

}  // namespace treeattn::cuda
