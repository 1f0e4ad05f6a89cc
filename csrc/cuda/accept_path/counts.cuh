// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/accept_path/cta_scan.cuh"
#include "treeattn/accept_path.h"
#include "treeattn/plan_tree.h"

namespace treeattn::cuda {

// Adds what the accepted paths say to p.counts. One CTA of kRowThreads per request goes along its
// path; next on the stream after the kernels that write it.
__global__ __launch_bounds__(kRowThreads) void accept_path_count_kernel(
    const __grid_constant__ AcceptPathParams p) {
  Units* const warp_sums = reinterpret_cast<Units*>(shared_memory());  // [kRowWarps]
  const int request = blockIdx.x;
  if (load_global(p.status + request) != kOk) return;
  const int64_t start = load_global(p.node_indptr + request);
  const int num_nodes = static_cast<int>(load_global(p.node_indptr + request + 1) - start);
  const int32_t* const path = p.path + request * (int64_t{p.max_depth} + 1);
  const AcceptCounts& counts = p.counts;
  const int num_depths = counts.num_depths < p.max_depth ? counts.num_depths : p.max_depth;
  for (int depth = 0; depth < num_depths; ++depth) {
    const int node = load_global(path + depth);
    if (node < 0) return;
    const int accepted = load_global(path + depth + 1);
    Units rank = 0;  // of the first child in what follows
    for (int begin = node + 1; begin < num_nodes; begin += kRowThreads) {
      const int child = begin + static_cast<int>(threadIdx.x);
      const bool is_child = child < num_nodes && load_global(p.parents + start + child) == node;
      const Prefix children = cta_prefix(is_child ? 1 : 0, warp_sums);
      const Units own = rank + children.before;
      rank += children.total;
      if (!is_child || own >= static_cast<Units>(counts.num_ranks)) continue;
      auto* const offered = reinterpret_cast<Units*>(counts.data) +
                            int64_t{depth} * counts.num_ranks + static_cast<int64_t>(own);
      atomicAdd(offered, Units{1});
      if (child == accepted) {
        atomicAdd(offered + int64_t{counts.num_depths} * counts.num_ranks, Units{1});
      }
    }
  }
}

}  // namespace treeattn::cuda
