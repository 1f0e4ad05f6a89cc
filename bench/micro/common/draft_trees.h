// SPDX-License-Identifier: Apache-2.0
// The draft trees of the benchmark items, by the names that bench/trees.py uses. The generators
// follow the same laws with other random numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "micro/common/random.h"
#include "micro/common/trees.h"

namespace treeattn::micro {

// A trunk of half the nodes with all others as leaves of its tip.
inline Parents broom_tree(int num_nodes) {
  Parents parents = chain_tree(num_nodes / 2);
  parents.resize(num_nodes, num_nodes / 2 - 1);
  return parents;
}

// `depth` levels below the root, equally wide, every parent drawn from the level above.
inline Parents layered_tree(int num_nodes, int depth) {
  Random random(0);
  Parents parents{-1};
  int above_begin = 0, above_size = 1;
  for (int level = 0; level < depth; ++level) {
    const int width = (num_nodes - 1) * (level + 1) / depth - (num_nodes - 1) * level / depth;
    const int begin = static_cast<int>(parents.size());
    for (int i = 0; i < width; ++i) parents.push_back(above_begin + random.below(above_size));
    if (width > 0) {
      above_begin = begin;
      above_size = width;
    }
  }
  return parents;
}

// The likeliest nodes of a random drafter, in order of falling score, as drafters emit them. Each
// node's next-token law has `concentration`: weights like gamma variates (those of shape below 1
// are uniform^(1 / shape) times nearly an exponential one).
inline Parents best_first_tree(int num_nodes, int max_depth, double concentration) {
  constexpr int kBranching = 8;
  struct Candidate {
    double cost;  // minus the score
    int tie, parent, depth;
    bool operator<(const Candidate& other) const {  // the cheapest on top, then the first
      return cost != other.cost ? cost > other.cost : tie > other.tie;
    }
  };
  Random random(0);
  Parents parents;
  std::priority_queue<Candidate> heap;
  heap.push({.cost = 0, .tie = 0, .parent = -1, .depth = 0});
  for (int ties = 0; static_cast<int>(parents.size()) < num_nodes;) {
    const Candidate best = heap.top();
    heap.pop();
    const int node = static_cast<int>(parents.size());
    parents.push_back(best.parent);
    if (best.depth == max_depth) continue;
    double weights[kBranching], total = 0;
    for (double& weight : weights) {
      weight = -std::log(random.uniform());
      if (concentration < 1) weight *= std::pow(random.uniform(), 1 / concentration);
      total += weight += 1e-12;
    }
    for (const double weight : weights) {
      heap.push({.cost = best.cost - std::log(weight / total),
                 .tie = ++ties,
                 .parent = node,
                 .depth = best.depth + 1});
    }
  }
  return parents;
}

// eagle-N, seq-N, dd-N, star-N, chain-N, dense-N, dD-N.
inline Parents named_tree(const std::string& name) {
  constexpr double kPeaky = 0.15, kFlat = 1.0;
  const size_t dash = name.rfind('-');
  if (dash == std::string::npos) throw std::invalid_argument("no tree is called " + name);
  const std::string kind = name.substr(0, dash);
  const int num_nodes = std::stoi(name.substr(dash + 1));
  if (kind == "eagle") return best_first_tree(num_nodes, num_nodes < 32 ? 6 : 8, kPeaky);
  if (kind == "seq") return best_first_tree(num_nodes, 12, kFlat);
  if (kind == "dd") return best_first_tree(num_nodes, 16, kPeaky);
  if (kind == "star") return star_tree(num_nodes);
  if (kind == "chain") return chain_tree(num_nodes);
  if (kind == "dense") return broom_tree(num_nodes);
  if (kind.size() < 2 || kind[0] != 'd') throw std::invalid_argument("no tree is called " + name);
  return layered_tree(num_nodes, std::stoi(kind.substr(1)));
}

// The tree that a drafter would typically emit at this size.
inline std::string tree_of_size(int num_nodes) {
  const char* const kind = num_nodes == 1     ? "chain-"
                           : num_nodes <= 64  ? "eagle-"
                           : num_nodes <= 256 ? "seq-"
                                              : "dd-";
  return kind + std::to_string(num_nodes);
}

// The same tree with its nodes in depth-first order, the first child first.
inline Parents depth_first(const Parents& parents) {
  const int num_nodes = static_cast<int>(parents.size());
  std::vector<std::vector<int>> children(num_nodes);
  for (int i = 1; i < num_nodes; ++i) children[parents[i]].push_back(i);
  std::vector<int> place(num_nodes), stack{0};
  Parents ordered;
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    place[node] = static_cast<int>(ordered.size());
    ordered.push_back(parents[node] < 0 ? -1 : place[parents[node]]);
    stack.insert(stack.end(), children[node].rbegin(), children[node].rend());
  }
  return ordered;
}

}  // namespace treeattn::micro
