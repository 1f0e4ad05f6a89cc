// SPDX-License-Identifier: Apache-2.0
// The acceptance rules beyond an argmax or a draw per node: in which order children are tried, and
// which random number decides. The same for the CPU, where one thread runs a rule, and for CUDA,
// where all threads of a CTA do, with the same numbers at each step.
//
// `Rows` is one request: its tree, its laws in closed form (residual.h), its random numbers. Nodes
// are ids within the request, -1 is none. It offers
//   int num_nodes(), parent(node), depth(node), first_child(node), next_sibling(node)
//   bool in_vocabulary(node)             its token has a logit
//   Status read_target(node)             the law after `node`, filters applied
//   bool has_target(node)
//   Status read_draft(child)             the law that `child` was drawn from; each row once
//   bool can_be_drawn(child)             that law gives its token some probability
//   double ratio(child)                  target / draft of its token, after those rejected before
//   double reject(child, reach)          subtracts the child's draft law from reach * the parent's
//                                        law; returns the mass of what is left
//   double reach(node); void set_reach(node, reach)
//   double coin(node, ordinal)           for trying `node`, in [0, 1): the step's ordinal-th
//   int draw(node, purpose)              an id of the law at `node`
// and, for rule typical,
//   double exp_minus_entropy(node), probability(child), log_prob(child)
//   double score(node); void set_score(node, score)
//   bool samples()                       there are random numbers
//   Outcome greedy(node)                 the likeliest token after `node`
#pragma once

#include "treeattn/host_device.h"
#include "treeattn/philox.h"
#include "treeattn/plan_tree.h"
#include "treeattn/residual.h"

namespace treeattn {

struct Outcome {
  int node;   // the last that was accepted
  int token;  // after it; -1 unless status is kOk
  Status status;
};

// A child to accept or reject, -1 when there is none left.
struct Trial {
  int child;
  Status status;
};

// The first trial among `child` and its younger siblings. What cannot have been drawn is none: it
// takes no coin and leaves the residual alone.
template <class Rows>
TREEATTN_HOST_DEVICE Trial next_trial(Rows& rows, int child) {
  for (; child >= 0; child = rows.next_sibling(child)) {
    if (!rows.in_vocabulary(child)) continue;
    const Status status = rows.read_draft(child);
    if (status != kOk) return {.child = -1, .status = status};
    if (rows.can_be_drawn(child)) break;
  }
  return {.child = child, .status = kOk};
}

TREEATTN_HOST_DEVICE inline double at_most_1(double x) { return x < 1 ? x : 1; }

// multistep (SpecInfer) and swor (recursive rejection): node by node, a child is accepted with the
// chance target / draft, else the target loses what the draft has. Coins in the order of trial.
template <class Rows>
TREEATTN_HOST_DEVICE Outcome try_siblings(Rows& rows) {
  uint32_t ordinal = 0;
  for (int node = 0;;) {
    const Status status = rows.read_target(node);
    if (status != kOk) return {.node = node, .token = -1, .status = status};
    RandomPurpose purpose = RandomPurpose::kBonus;
    Trial trial = next_trial(rows, rows.first_child(node));
    while (trial.child >= 0 &&
           !(rows.coin(trial.child, ordinal++) < at_most_1(rows.ratio(trial.child)))) {
      rows.reject(trial.child, 1.0);
      purpose = RandomPurpose::kResidual;
      trial = next_trial(rows, rows.next_sibling(trial.child));
    }
    if (trial.status != kOk) return {.node = node, .token = -1, .status = trial.status};
    if (trial.child < 0) return {.node = node, .token = rows.draw(node, purpose), .status = kOk};
    node = trial.child;
  }
}

enum class CoinOrder {
  kTrial,  // leaves first, as they are met
  kDepth,  // a node's depth - 1
};

// traversal (Traversal Verification), and block (Block Verification) on a chain: goes down first
// children to a leaf, accepts it with its reach, or removes it and goes on from its parent. A node
// without reach counts as a leaf, whatever hangs below it, and the root is accepted without a coin.
template <class Rows>
TREEATTN_HOST_DEVICE Outcome verify_leaves(Rows& rows, CoinOrder order) {
  uint32_t ordinal = 0;
  rows.set_reach(0, 1.0);
  for (int node = 0, next = rows.first_child(0);;) {
    Trial trial{.child = -1, .status = kOk};
    if (rows.reach(node) > 0) trial = next_trial(rows, next);
    Status status = trial.status;
    if (status == kOk && trial.child >= 0 && !rows.has_target(node)) {
      status = rows.read_target(node);
    }
    if (status != kOk) return {.node = 0, .token = -1, .status = status};
    if (trial.child >= 0) {
      rows.set_reach(trial.child, at_most_1(rows.reach(node) * rows.ratio(trial.child)));
      node = trial.child;
      next = rows.first_child(node);
      continue;
    }
    const auto next_coin = [&] {
      return order == CoinOrder::kTrial ? ordinal++ : static_cast<uint32_t>(rows.depth(node) - 1);
    };
    if (node == 0 || rows.coin(node, next_coin()) < rows.reach(node)) {
      RandomPurpose purpose = RandomPurpose::kResidual;
      if (!rows.has_target(node)) {
        purpose = RandomPurpose::kBonus;
        status = rows.read_target(node);
        if (status != kOk) return {.node = 0, .token = -1, .status = status};
      }
      return {.node = node, .token = rows.draw(node, purpose), .status = kOk};
    }
    const int parent = rows.parent(node);
    const double reach = rows.reach(parent);
    const double excess = rows.reject(node, reach);
    if (parent != 0) rows.set_reach(parent, chance_to_stop(excess, reach));
    next = rows.next_sibling(node);
    node = parent;
  }
}

// typical (Medusa): accepts a token whose probability exceeds min(epsilon, delta * exp(-entropy));
// the longest accepted path wins, ties by the sum of log probabilities, then by the smaller node.
// A bad row ends the paths through it, and matters only where the longest path ends. Lossy.
template <class Rows>
TREEATTN_HOST_DEVICE Outcome accept_typical(Rows& rows, double epsilon, double delta) {
  // reach is 1 for accepted nodes; scores are sums of log probabilities.
  int last = 0;
  rows.set_reach(0, 1.0);
  rows.set_score(0, 0.0);
  for (int node = 0; node < rows.num_nodes(); ++node) {
    if (!(rows.reach(node) > 0)) continue;
    const int longer = rows.depth(node) - rows.depth(last);
    if (longer > 0 || (longer == 0 && rows.score(node) > rows.score(last))) last = node;
    int child = rows.first_child(node);
    if (child < 0 || rows.read_target(node) != kOk) continue;
    const double spread = delta * rows.exp_minus_entropy(node);
    const double threshold = epsilon < spread ? epsilon : spread;
    for (; child >= 0; child = rows.next_sibling(child)) {
      if (!rows.in_vocabulary(child) || !(rows.probability(child) > threshold)) continue;
      rows.set_reach(child, 1.0);
      rows.set_score(child, rows.score(node) + rows.log_prob(child));
    }
  }
  if (!rows.samples()) return rows.greedy(last);
  const Status status = rows.read_target(last);
  if (status != kOk) return {.node = last, .token = -1, .status = status};
  return {.node = last, .token = rows.draw(last, RandomPurpose::kBonus), .status = kOk};
}

}  // namespace treeattn
