// SPDX-License-Identifier: Apache-2.0
// Laws of the acceptance rules in closed form: a few numbers per node instead of a row of
// probabilities.
//
// After some children of a node were rejected the law there is, for each id x,
//   r(x) = max(0, scale * w(x) - sum over draft rows of share * q(x)),
// with w the target's weights and q the draft's: one rejection takes r to max(0, reach * r - q),
// normalised, and because q >= 0, what max(0, .) has cut off stays cut off. So it is without
// replacement, where the next q has lost the token of each trial: a child is rejected only if
// reach * r < q at its token, which leaves r = 0 there whatever is subtracted later.
//
// scale and shares grow with each rejection, by 1 / the mass it left, and r is their difference: it
// takes doubles. A factor of 1e12 comes with a chance of 1e-12.
#pragma once

#include <cmath>

#include "treeattn/host_device.h"

namespace treeattn {

// The target at one node: ids whose logit is above the cut, or equals it below `tie_end`, and whose
// weight exp((logit - max) / temperature) is at least `min_weight`. Their weights sum up to
// `total`.
struct TargetLaw {
  float max;
  float temperature;
  float cut;
  int tie_end;
  float min_weight;
  double total;
};

// Log probability of an id that is in the law.
TREEATTN_HOST_DEVICE inline double log_prob_of(const TargetLaw& law, float logit) {
  return (double{logit} - law.max) / law.temperature - std::log(law.total);
}

// A row that was drafted from: q = weight / total. Given as logits, weight = exp(logit - max); as
// probabilities, total is 1 and max unused.
struct DraftLaw {
  float max;
  double total;
};

// What a request's rule keeps of one node; indices are nodes of the request, -1 is none.
struct NodeState {
  // The node as a parent.
  int first_child = -1;
  int first_leader = -1;
  bool has_target = false;  // `target` and `scale` are known
  TargetLaw target = {};
  double scale = 0;
  double reach = 0;  // the chance at which the rule accepts the node, once it gets to that
  double score = 0;  // typical: sum of log probabilities from the root
  // The node as a child.
  int next_sibling = -1;
  int leader = -1;  // the sibling that was the first to be looked at with the same draft row
  // The draft row that this leader stands for.
  int next_leader = -1;
  DraftLaw draft = {.max = 0, .total = 1};
  double share = 0;
  double condition = 1;  // 1 / the mass of what is left to be drawn
};

// A rejection that is being worked out: the law at `node` becomes max(0, reach * r - q), q being
// what `child` was drawn from. child -1 and reach 1: r itself.
struct Rejection {
  int node;
  int child;
  double reach;
};

struct ResidualMass {
  double excess;  // sum of max(0, reach * r - q)
  double left;    // of the draft's weights, without the tokens of its trials so far
};

// q = draft_scale * weight, what the child was drawn from.
TREEATTN_HOST_DEVICE inline double draft_scale(const NodeState* nodes, int child) {
  const NodeState& leader = nodes[nodes[child].leader];
  return leader.condition / leader.draft.total;
}

// Makes `child` the leader of a draft row that none of its siblings was drawn from.
TREEATTN_HOST_DEVICE inline void lead(NodeState* nodes, int parent, int child,
                                      const DraftLaw& draft) {
  nodes[child].leader = child;
  nodes[child].draft = draft;
  nodes[child].next_leader = nodes[parent].first_leader;
  nodes[parent].first_leader = child;
}

// Something was subtracted from the target at `node`.
TREEATTN_HOST_DEVICE inline bool has_residual(const NodeState* nodes, int node) {
  for (int i = nodes[node].first_leader; i >= 0; i = nodes[i].next_leader) {
    if (nodes[i].share > 0) return true;
  }
  return false;
}

// What the rejection takes of each weight of the row that `leader` stands for.
TREEATTN_HOST_DEVICE inline double share_of(const NodeState* nodes, const Rejection& r,
                                            int leader) {
  const double before = r.reach * nodes[leader].share;
  const bool subtracted = r.child >= 0 && nodes[r.child].leader == leader;
  return subtracted ? before + draft_scale(nodes, r.child) : before;
}

// Turns the states into those after the rejection, whose mass has been summed up. False where the
// law stays: nothing is left, so that target and draft were one law up to rounding, or so little
// that rounding is all there is to see of it.
TREEATTN_HOST_DEVICE inline bool settle(NodeState* nodes, const Rejection& r,
                                        const ResidualMass& mass, bool without_replacement) {
  constexpr double kLargest = 1e12;
  NodeState& node = nodes[r.node];
  const double scale = r.reach * node.scale;
  const bool changes = mass.excess > 0 && scale < kLargest * mass.excess;
  if (changes) {
    node.scale = scale / mass.excess;
    for (int i = node.first_leader; i >= 0; i = nodes[i].next_leader) {
      nodes[i].share = share_of(nodes, r, i) / mass.excess;
    }
  }
  if (without_replacement) {
    NodeState& leader = nodes[nodes[r.child].leader];
    leader.condition = mass.left > 0 ? leader.draft.total / mass.left : 0;
  }
  return changes;
}

// The chance to stop at a node whose last child was rejected, `excess` being what that left.
// The sum in this order: 1 - reach is exact, and never lost in a large excess.
TREEATTN_HOST_DEVICE inline double chance_to_stop(double excess, double reach) {
  return excess > 0 ? excess / (excess + (1 - reach)) : 0;
}

}  // namespace treeattn
