// SPDX-License-Identifier: Apache-2.0
// One request's walk: what it may read, where it goes next, what it leaves.
#pragma once

#include "cuda/accept_path/config.h"
#include "cuda/accept_path/sampling.cuh"
#include "treeattn/plan_tree.h"

namespace treeattn::cuda {

struct Tree {
  int64_t start;  // row of the batch that is node 0
  int num_nodes;
  int status;  // kOk: the request may be walked
};

__device__ __forceinline__ Tree tree_of(const AcceptPathParams& p, int request) {
  const int start = load_global(p.node_indptr + request);
  const int end = load_global(p.node_indptr + request + 1);
  Tree tree{
      .start = start, .num_nodes = end - start, .status = load_global(p.plan_status + request)};
  if (tree.status != kOk) return tree;
  if (start < 0 || end < start || end > p.num_nodes) {
    tree.status = kInvalid;
  } else if (tree.num_nodes == 0) {
    tree.status = kInactive;
  } else if (!sampling_is_valid(p, request)) {
    tree.status = kInvalid;
  }
  return tree;
}

__device__ __forceinline__ int64_t token_of(const AcceptPathParams& p, int64_t node) {
  return p.wide_tokens ? load_global(static_cast<const int64_t*>(p.tokens) + node)
                       : load_global(static_cast<const int32_t*>(p.tokens) + node);
}

// The first child behind node `after` for which wanted(row of the batch) holds, as a node of the
// request; -1 when there is none. Called by all threads of a CTA; `child` is one of its shared
// variables.
template <class F>
__device__ __forceinline__ int find_child_if(const AcceptPathParams& p, const Tree& tree, int node,
                                             int after, int* child, F&& wanted) {
  if (threadIdx.x == 0) *child = tree.num_nodes;
  __syncthreads();  // child is set
  for (int i = after + 1 + static_cast<int>(threadIdx.x); i < tree.num_nodes;
       i += static_cast<int>(blockDim.x)) {
    if (load_global(p.parents + tree.start + i) != node) continue;
    if (!wanted(tree.start + i)) continue;
    atomicMin(child, i);
    break;  // this thread's others come later
  }
  __syncthreads();  // all children have been seen
  const int first = *child;
  __syncthreads();  // child has been read
  return first < tree.num_nodes ? first : -1;
}

// The first child that holds the token.
__device__ __forceinline__ int find_child(const AcceptPathParams& p, const Tree& tree, int node,
                                          int token, int* child) {
  return find_child_if(p, tree, node, node, child,
                       [&](int64_t row_idx) { return token_of(p, row_idx) == token; });
}

// What an untouched request shows. Called by all threads of a CTA.
__device__ __forceinline__ void clear_request(const AcceptPathParams& p, int request) {
  const int64_t width = int64_t{p.max_depth} + 1;
  const float nan = __uint_as_float(0x7fc00000);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    store_global(p.path + request * width + i, -1);
    store_global(p.emitted + request * width + i, -1);
    if (p.logprobs != nullptr) store_global(p.logprobs + request * width + i, nan);
    if (p.processed_logprobs != nullptr) {
      store_global(p.processed_logprobs + request * width + i, nan);
    }
  }
}

// What one row said, and where it leads.
struct alignas(16) Step {
  int token;
  int status;
  int child;  // -1: out of the tree
  float log_prob;
};
static_assert(sizeof(Step) == kStepInts * sizeof(int32_t));

// Called by one thread, after a barrier behind clear_request.
__device__ __forceinline__ void store_step(const AcceptPathParams& p, int request, int depth,
                                           int node, const Step& step) {
  const int64_t at = request * (int64_t{p.max_depth} + 1) + depth;
  store_global(p.path + at, node);
  if (step.status != kOk) return;
  store_global(p.emitted + at, step.token);
  if (p.logprobs != nullptr) store_global(p.logprobs + at, step.log_prob);
}

// Called by one thread.
__device__ __forceinline__ void store_end(const AcceptPathParams& p, int request, int num_accepted,
                                          int64_t next_token, int status) {
  store_global(p.num_accepted + request, num_accepted);
  store_global(p.next_tokens + request, next_token);
  store_global(p.status + request, status);
}

}  // namespace treeattn::cuda
