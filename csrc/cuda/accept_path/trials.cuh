// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/accept_path/row_walk.cuh"
#include "cuda/accept_path/trial_rows.cuh"

namespace treeattn::cuda {

// What the CPU op would raise: a tree that the rule cannot take, draft rows out of range, draft ids
// out of range or repeated (`bad_ids`). Called by all threads of a CTA; the same for all.
__device__ __forceinline__ bool trials_are_valid(const AcceptPathParams& p, const Tree& tree,
                                                 const int32_t* bad_ids, Units* warp_sums) {
  const DraftLaws& drafts = p.drafts;
  bool valid = !reads_drafts(p.rule) ||
               (drafts.laws != nullptr && (drafts.ids == nullptr || load_global(bad_ids) == 0));
  for (int i = static_cast<int>(threadIdx.x); i < tree.num_nodes && reads_drafts(p.rule);
       i += kRowThreads) {
    const int64_t node = tree.start + i;
    const int parent = load_global(p.parents + node);
    if (p.rule == AcceptRule::kBlock && parent != i - 1) valid = false;
    const int64_t token = token_of(p, node);
    if (i == 0 || token < 0 || token >= p.vocab_size) continue;
    const int row = drafts.rows != nullptr ? load_global(drafts.rows + node) : 0;
    if (row < 0 || row >= drafts.num_rows) valid = false;
    if (!drafts.without_replacement) continue;
    for (int64_t twin = tree.start + parent + 1; twin < node; ++twin) {
      if (load_global(p.parents + twin) != parent || token_of(p, twin) != token) continue;
      if (drafts.rows == nullptr || load_global(drafts.rows + twin) == row) valid = false;
    }
  }
  return cta_max(valid ? 0 : 1, warp_sums) == 0;
}

template <class Rows>
__device__ Outcome run_rule(const AcceptPathParams& p, Rows& rows) {
  switch (p.rule) {
    case AcceptRule::kBlock:
    case AcceptRule::kTraversal:
      return verify_leaves(rows,
                           p.rule == AcceptRule::kBlock ? CoinOrder::kDepth : CoinOrder::kTrial);
    case AcceptRule::kTypical:
      return accept_typical(rows, p.typical_epsilon, p.typical_delta);
    default:
      return try_siblings(rows);
  }
}

// Log probabilities of the token after one node of the accepted path. Called by all threads.
template <class T>
__device__ __noinline__ void store_log_probs(TrialRows<T>& rows, int node, int64_t at, int token) {
  const AcceptPathParams& p = rows.p;
  if (p.processed_logprobs != nullptr) {
    rows.read_target(node);
    const float result = processed_log_prob(rows.row(node), rows.nodes[node].target, token);
    if (threadIdx.x == 0) store_global(p.processed_logprobs + at, result);
  }
  if (p.logprobs == nullptr) return;
  rows.forget();
  const Row<T> raw(rows.row(node).logits, nullptr, p.vocab_size);
  const Peak peak = find_peak(raw, rows.s);
  const float result =
      peak.finite ? log_prob(raw, rows.s, token, peak.max) : __uint_as_float(0x7fc00000);
  if (threadIdx.x == 0) store_global(p.logprobs + at, result);
}

// The path to the outcome's node, and what it emits. Called by all threads, after a barrier behind
// clear_request.
template <class T>
__device__ void store_outcome(TrialRows<T>& rows, const Outcome& outcome) {
  const AcceptPathParams& p = rows.p;
  const int request = rows.request;
  const int num_accepted = rows.depth(outcome.node);
  const int64_t first = request * (int64_t{p.max_depth} + 1);
  if (threadIdx.x == 0) {
    store_end(p, request, num_accepted, outcome.token, outcome.status);
  }
  int64_t token = outcome.token;  // after `node`
  for (int depth = num_accepted, node = outcome.node; depth >= 0; --depth) {
    if (threadIdx.x == 0) {
      store_global(p.path + first + depth, node);
      store_global(p.emitted + first + depth, token);
    }
    if (token >= 0) {
      store_log_probs(rows, node, first + depth, static_cast<int>(token));
    }
    token = rows.token(node);
    node = depth > 0 ? rows.parent(node) : node;
  }
}

// The rules that try children. One CTA of kRowThreads per request runs its rule and reads the rows
// that it asks for, one after the other; a request of temperature 0 is walked. Nobody waits for
// another CTA. `nodes` [num_nodes]: any content.
template <class T>
__global__ __launch_bounds__(kRowThreads, 1) void accept_path_trials_kernel(
    const __grid_constant__ AcceptPathParams p, const __grid_constant__ RowLayout layout,
    NodeState* const nodes, const int32_t* const bad_ids) {
  const RowShared s{layout};
  const int request = blockIdx.x;
  Tree tree = tree_of(p, request);
  clear_request(p, request);
  __syncthreads();  // the outputs are cleared before they are filled
  const bool walks = tree.status == kOk && is_greedy(p, request);
  if (tree.status == kOk && !walks && !trials_are_valid(p, tree, bad_ids, s.warp_sums()))
    tree.status = kInvalid;
  if (tree.status != kOk) {
    if (threadIdx.x == 0) store_end(p, request, 0, -1, tree.status);
    return;
  }
  if (walks) {
    walk<T, false>(p, s, request, tree);
    return;
  }
  auto& rows = TrialRows<T>::make(p, s, request, tree, nodes);
  const Outcome outcome = run_rule(p, rows);
  store_outcome(rows, outcome);
}

}  // namespace treeattn::cuda
