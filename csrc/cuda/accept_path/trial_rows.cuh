// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

#include "cuda/accept_path/draft_row.cuh"
#include "cuda/accept_path/residual.cuh"
#include "cuda/accept_path/walk.cuh"
#include "treeattn/accept_rules.h"

namespace treeattn::cuda {

// One request as the rules of treeattn/accept_rules.h see it. All threads of a CTA of kRowThreads
// run a rule together and get the same numbers: a node's state lies in global memory, is changed by
// one thread between two barriers, and read by all. So is this object, in shared memory. What
// passes over a row is no part of the rules' code, each of which would else have its own copy.
template <class T>
struct TrialRows {
  GridConstant<AcceptPathParams> p;
  const RowShared s;
  int request;
  Tree tree;
  NodeState* nodes;  // [tree.num_nodes]
  Sampling sampling;
  int found;   // whose target's sums by chunk lie in shared memory; -1 is none
  int summed;  // whose residual's sums by segment lie there instead

  // Called by all threads; `all_nodes` [p.num_nodes].
  __device__ static TrialRows& make(const AcceptPathParams& p, const RowShared& s, int request,
                                    const Tree& tree, NodeState* all_nodes) {
    auto* const rows = s.behind<TrialRows>();
    NodeState* const nodes = all_nodes + tree.start;
    if (threadIdx.x == 0) {
      new (rows) TrialRows{.p = p,
                           .s = s,
                           .request = request,
                           .tree = tree,
                           .nodes = nodes,
                           .sampling = sampling_of(p, request),
                           .found = -1,
                           .summed = -1};
    }
    for (int i = static_cast<int>(threadIdx.x); i < tree.num_nodes; i += kRowThreads) {
      nodes[i] = NodeState{};
    }
    __syncthreads();  // rows and states are there
    return *rows;
  }

  // Changes states by one thread, once all have read what they were.
  template <class F>
  __device__ __forceinline__ void change(F&& f) {
    __syncthreads();  // all threads are done with the states as they were
    if (threadIdx.x == 0) f();
    __syncthreads();  // the states have changed
  }

  // The sums in shared memory are no longer those of a node.
  __device__ __forceinline__ void forget() {
    change([&] { found = summed = -1; });
  }

  __device__ int num_nodes() const { return tree.num_nodes; }
  __device__ int parent(int node) const { return load_global(p.parents + tree.start + node); }
  __device__ int depth(int node) const { return load_global(p.depths + tree.start + node); }
  __device__ int64_t token(int node) const { return token_of(p, tree.start + node); }
  __device__ bool in_vocabulary(int node) const {
    return token(node) >= 0 && token(node) < p.vocab_size;
  }

  // Links what the rule has looked at: that is all that the states are asked for.
  __device__ int first_child(int node) {
    const int child = child_after(node, node);
    if (child >= 0) change([&] { nodes[node].first_child = child; });
    return child;
  }
  __device__ int next_sibling(int elder) {
    const int child = child_after(parent(elder), elder);
    if (child >= 0) change([&] { nodes[elder].next_sibling = child; });
    return child;
  }
  // A plan may have been cut short of the tree.
  __device__ __noinline__ int child_after(int node, int after) {
    if (depth(node) >= p.max_depth) return -1;
    return find_child_if(p, tree, node, after, &s.control()->child, [](int64_t) { return true; });
  }

  __device__ Row<T> row(int node) const { return row_of<T>(p, tree.start + node); }
  __device__ DraftRow draft(int child) const { return DraftRow(p.drafts, draft_row(child)); }
  __device__ int draft_row(int child) const {
    return p.drafts.rows != nullptr ? load_global(p.drafts.rows + tree.start + child)
                                    : static_cast<int>(tree.start) + parent(child);
  }

  __device__ bool has_target(int node) const { return nodes[node].has_target; }
  __device__ Status read_target(int node) { return has_target(node) ? kOk : find_target(node); }
  __device__ __noinline__ Status find_target(int node) {
    if (threadIdx.x == 0) count(Counter::kRowsRead);
    TargetLaw law;
    Prefix prefix;
    const auto status = static_cast<Status>(find_law(row(node), s, sampling, law, prefix));
    change([&] {
      found = status == kOk ? node : -1;
      summed = -1;
      if (status != kOk) return;
      nodes[node].target = law;
      if (!nodes[node].has_target) nodes[node].scale = 1 / law.total;
      nodes[node].has_target = true;
    });
    return status;
  }

  __device__ __noinline__ Status read_draft(int child) {
    const int above = parent(child), row = draft_row(child);
    for (int i = nodes[above].first_leader; i >= 0; i = nodes[i].next_leader) {
      if (draft_row(i) != row) continue;
      change([&] { nodes[child].leader = i; });
      return kOk;
    }
    if (threadIdx.x == 0) count(Counter::kDraftRowsRead);
    DraftLaw law;
    if (!draft(child).read(law, s.warp_sums())) return kNonFinite;
    change([&] { lead(nodes, above, child, law); });
    return kOk;
  }

  __device__ double draft_chance(int child) const {
    const DraftLaw& law = nodes[nodes[child].leader].draft;
    return draft_scale(nodes, child) * draft(child).weight(law, static_cast<int>(token(child)));
  }
  __device__ __noinline__ bool can_be_drawn(int child) const { return draft_chance(child) > 0; }
  __device__ __noinline__ double ratio(int child) const {
    return residual(parent(child)).law_at(static_cast<int>(token(child))) / draft_chance(child);
  }

  __device__ Residual<T> residual(int node, int child = -1, double reach = 1) const {
    return Residual<T>(p, tree.start, row(node), nodes,
                       {.node = node, .child = child, .reach = reach});
  }

  __device__ __noinline__ double reject(int child, double reach) {
    const int node = parent(child);
    const Residual<T> rest = residual(node, child, reach);
    const ResidualMass mass = rest.sum(s);
    change([&] {
      const bool changes = settle(nodes, rest.rejection, mass, p.drafts.without_replacement);
      found = -1;
      summed = changes ? node : -1;
    });
    if (summed == node) rest.normalise_sums(s, mass.excess);
    __syncthreads();  // sums are complete
    return mass.excess;
  }

  __device__ double reach(int node) const { return nodes[node].reach; }
  __device__ void set_reach(int node, double reach) {
    change([&] { nodes[node].reach = reach; });
  }
  __device__ double coin(int node, uint32_t ordinal) const {
    return coin_at(p, request, tree.start + node, ordinal);
  }

  __device__ __noinline__ int draw(int node, RandomPurpose purpose) {
    const double uniform = uniform_at(p, request, tree.start + node, purpose);
    if (has_residual(nodes, node)) {
      const Residual<T> rest = residual(node);
      if (summed != node) {
        rest.sum(s);
        forget();
      }
      return rest.draw(s, uniform);
    }
    if (found != node) find_target(node);
    const Row<T> drawn_from = row(node);
    return draw_found(drawn_from, s, nodes[node].target, chunk_prefix(drawn_from, s), uniform);
  }

  // For rule typical.
  __device__ double score(int node) const { return nodes[node].score; }
  __device__ void set_score(int node, double score) {
    change([&] { nodes[node].score = score; });
  }
  __device__ bool samples() const { return p.seeds.data != nullptr || p.uniforms != nullptr; }
  __device__ __noinline__ Outcome greedy(int node) {
    if (threadIdx.x == 0) count(Counter::kRowsRead);
    forget();
    const Choice choice = cuda::greedy(row(node), s);
    return {.node = node, .token = choice.token, .status = static_cast<Status>(choice.status)};
  }
  __device__ double probability(int child) const {
    const int node = parent(child);
    return residual(node).target_weight(static_cast<int>(token(child))) / nodes[node].target.total;
  }
  __device__ double log_prob(int child) const {
    const int node = parent(child);
    return log_prob_of(nodes[node].target, to_float(load_global(row(node).logits + token(child))));
  }
  __device__ double exp_minus_entropy(int node) const {
    const TargetLaw law = nodes[node].target;
    return std::exp(-residual(node).depth_sum(s) / law.temperature / law.total) / law.total;
  }
};

}  // namespace treeattn::cuda
