// SPDX-License-Identifier: Apache-2.0
// Depth-first order of a tree, by all threads of a CTA.
#pragma once

#include "cuda/common/ptx.cuh"

namespace treeattn::cuda {

inline constexpr int kPlanThreads = 256;
// Larger trees are ordered by one thread: slower, but with no limit.
inline constexpr int kMaxParallelNodes = 2048;

struct TourShared {
  int32_t parents[kMaxParallelNodes];
  int32_t first_child[kMaxParallelNodes];   // -1: none
  int32_t next_sibling[kMaxParallelNodes];  // in index order, -1: none
  uint32_t rank[2 * kMaxParallelNodes];
  int32_t next[2 * kMaxParallelNodes];
};

struct TreeRows {
  const int32_t* parents;
  int32_t* depths;
  int32_t* positions;  // scratch
  int32_t* order;
  int32_t* subtree_ends;
  int num_nodes;
};

// Links each node to its first child and its next sibling. One warp, from the last 32 nodes to the
// first: the nodes behind them have left the head of each parent's list in first_child.
__device__ inline void link_siblings(TourShared& s, int num_nodes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = (num_nodes - 1) / 32 * 32; first >= 0; first -= 32) {
    const int node = first + lane;
    const bool is_child = node > 0 && node < num_nodes;
    const int parent = is_child ? s.parents[node] : -1 - lane;  // alone
    const uint32_t siblings = __match_any_sync(0xffffffff, parent);
    const uint32_t later = lane == 31 ? 0 : siblings >> (lane + 1) << (lane + 1);
    if (is_child) {
      s.next_sibling[node] = later != 0 ? first + __ffs(later) - 1 : s.first_child[parent];
    }
    __syncwarp(0xffffffff);  // heads are read before they change
    if (is_child && (siblings & ((1u << lane) - 1)) == 0) s.first_child[parent] = node;
    __syncwarp(0xffffffff);
  }
}

// Walks the tour down(0) .. up(0) around the tree, all steps at once: element i of rank and next
// is the step down to node i, element num_nodes + i the step up from it. By pointer doubling, rank
// becomes the steps from there to the end, the end itself not counted: those down in the low half,
// all in the high half.
__device__ inline void rank_tour(TourShared& s, int num_nodes) {
  constexpr int kSteps = 2 * kMaxParallelNodes / kPlanThreads;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < num_nodes; i += kPlanThreads) {
    const int child = s.first_child[i];
    s.rank[i] = 1u << 16 | 1u;
    s.next[i] = child >= 0 ? child : num_nodes + i;
    const int sibling = i > 0 ? s.next_sibling[i] : -1;
    s.rank[num_nodes + i] = i > 0 ? 1u << 16 : 0u;
    s.next[num_nodes + i] = sibling >= 0 ? sibling : num_nodes + (i > 0 ? s.parents[i] : 0);
  }
  __syncthreads();  // the tour is linked
  for (int reach = 1; reach < 2 * num_nodes; reach *= 2) {
    uint32_t rank[kSteps];
    int32_t next[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int step = thread + k * kPlanThreads;
      if (step >= 2 * num_nodes) continue;
      rank[k] = s.rank[step] + s.rank[s.next[step]];
      next[k] = s.next[s.next[step]];
    }
    __syncthreads();  // all have read before anyone writes
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int step = thread + k * kPlanThreads;
      if (step >= 2 * num_nodes) continue;
      s.rank[step] = rank[k];
      s.next[step] = next[k];
    }
    __syncthreads();  // ranks of this reach are complete
  }
}

// All threads of the CTA; t.parents are s.parents and checked. Children come in index order.
__device__ inline void order_by_tour(TourShared& s, const TreeRows& t) {
  const int n = t.num_nodes;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < n; i += kPlanThreads) s.first_child[i] = -1;
  __syncthreads();  // lists are empty
  if (thread < 32) link_siblings(s, n);
  __syncthreads();  // lists are complete
  rank_tour(s, n);
  for (int i = thread; i < n; i += kPlanThreads) {
    const int to_place = static_cast<int>(s.rank[i] & 0xffff);  // nodes from here to the end
    const int behind = static_cast<int>(s.rank[n + i] & 0xffff);
    const int steps = static_cast<int>(s.rank[i] >> 16);
    t.depths[i] = steps - 2 * to_place + 1;  // each step up that is not matched leaves an ancestor
    t.order[n - to_place] = i;
    t.subtree_ends[i] = n - behind;
  }
}

// The same by one thread, for trees of any size. A node's place is its parent's cursor, which then
// skips the node's subtree; `positions` holds subtree sizes at first, cursors later.
__device__ inline void order_by_one_thread(const TreeRows& t) {
  if (threadIdx.x != 0) return;
  int32_t* const size_or_cursor = t.positions;
  for (int i = 0; i < t.num_nodes; ++i) size_or_cursor[i] = 1;
  for (int i = t.num_nodes - 1; i > 0; --i) size_or_cursor[t.parents[i]] += size_or_cursor[i];
  t.subtree_ends[0] = t.num_nodes;
  t.depths[0] = t.order[0] = 0;
  size_or_cursor[0] = 1;
  for (int i = 1; i < t.num_nodes; ++i) {
    const int size = size_or_cursor[i];
    const int place = size_or_cursor[t.parents[i]];
    size_or_cursor[t.parents[i]] = place + size;
    size_or_cursor[i] = place + 1;
    t.order[place] = i;
    t.subtree_ends[i] = place + size;
    t.depths[i] = t.depths[t.parents[i]] + 1;
  }
}

}  // namespace treeattn::cuda
