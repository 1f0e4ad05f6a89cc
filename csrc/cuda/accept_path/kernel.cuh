// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/accept_path/row_walk.cuh"

namespace treeattn::cuda {

// The lazy walk. One CTA of kRowThreads per request. Nobody waits for another CTA.
template <class T, bool kDraws>
__global__ __launch_bounds__(kRowThreads, 1) void accept_path_walk_kernel(
    const __grid_constant__ AcceptPathParams p, const __grid_constant__ RowLayout layout) {
  const RowShared s{layout};
  const int request = blockIdx.x;
  const Tree tree = tree_of(p, request);
  clear_request(p, request);
  __syncthreads();  // the outputs are cleared before they are filled
  if (tree.status != kOk) {
    if (threadIdx.x == 0) store_end(p, request, 0, -1, tree.status);
    return;
  }
  walk<T, kDraws>(p, s, request, tree);
}

// All rows at once, one CTA of kRowThreads each: `steps` [num_nodes] gets what every row of a live
// request says. accept_path_follow_kernel, next on the stream, picks those on the way.
template <class T, bool kDraws>
__global__ __launch_bounds__(kRowThreads, 2) void accept_path_rows_kernel(
    const __grid_constant__ AcceptPathParams p, const __grid_constant__ RowLayout layout,
    Step* const steps) {
  const RowShared s{layout};
  const int row_idx = blockIdx.x;
  if (threadIdx.x == 0) s.control()->request = -1;
  __syncthreads();  // request is set
  for (int b = static_cast<int>(threadIdx.x); b < p.num_requests; b += kRowThreads) {
    if (load_global(p.node_indptr + b) <= row_idx && row_idx < load_global(p.node_indptr + b + 1)) {
      atomicMax(&s.control()->request, b);  // one request alone, where the offsets are valid
    }
  }
  __syncthreads();  // the request is known
  const int request = s.control()->request;
  if (request < 0) return;  // capacity that belongs to nobody
  const Tree tree = tree_of(p, request);
  if (tree.status != kOk) return;
  Step step = read_row<T, kDraws>(p, s, request, row_idx).step;
  const int node = static_cast<int>(row_idx - tree.start);
  if (step.status == kOk) {
    step.child = find_child(p, tree, node, step.token, &s.control()->child);
  }
  if (threadIdx.x == 0) {
    uint4 bytes;
    __builtin_memcpy(&bytes, &step, sizeof(step));
    store_16(steps + row_idx, bytes);
  }
}

// One CTA of kFollowThreads per request follows the steps that its rows left. One thread walks, as
// far as possible through shared memory.
inline constexpr int kFollowThreads = 128;
inline constexpr int kFollowNodes = 2048;  // of which the children are kept in shared memory

__global__ __launch_bounds__(kFollowThreads) void accept_path_follow_kernel(
    const __grid_constant__ AcceptPathParams p, const Step* const steps) {
  int* const children = reinterpret_cast<int*>(shared_memory());  // [kFollowNodes]
  const int request = blockIdx.x;
  const Tree tree = tree_of(p, request);
  clear_request(p, request);
  const int num_kept = tree.num_nodes < kFollowNodes ? tree.num_nodes : kFollowNodes;
  if (tree.status == kOk) {
    for (int i = static_cast<int>(threadIdx.x); i < num_kept; i += kFollowThreads) {
      children[i] = load_global(&steps[tree.start + i].child);
    }
  }
  __syncthreads();  // children are there, and the outputs are cleared before they are filled
  if (threadIdx.x != 0) return;
  if (tree.status != kOk) {
    store_end(p, request, 0, -1, tree.status);
    return;
  }
  for (int depth = 0, node = 0;; ++depth) {
    const uint4 bytes = load_16(steps + tree.start + node);
    Step step;
    __builtin_memcpy(&step, &bytes, sizeof(step));
    store_step(p, request, depth, node, step);
    const int child = node < num_kept ? children[node] : step.child;
    if (child < 0 || depth == p.max_depth) {
      store_end(p, request, depth, step.status == kOk ? step.token : -1, step.status);
      return;
    }
    node = child;
  }
}

}  // namespace treeattn::cuda
