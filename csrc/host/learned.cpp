// SPDX-License-Identifier: Apache-2.0
#include "host/learned.h"

#include <algorithm>
#include <cmath>

namespace treeattn::host {
namespace {

// The drafter's probability of each node given its parent, at most 1; 1 without scores, and 0 below
// what it says is impossible.
std::vector<double> below_parent(const ScoredTree& tree) {
  std::vector<double> below(tree.parents.size(), 1.0);
  if (tree.scores.empty()) return below;
  std::vector<double> scores(tree.scores.begin(), tree.scores.end());
  if (!scores.empty()) scores[0] = 0.0;
  for (std::size_t i = 1; i < scores.size(); ++i) {
    const auto parent = static_cast<std::size_t>(tree.parents[i]);
    // The root outranks all, whatever its children score.
    if (parent != 0) scores[i] = std::min(scores[i], scores[parent]);
    below[i] =
        std::isfinite(scores[parent]) ? std::exp(std::min(scores[i] - scores[parent], 0.0)) : 0.0;
  }
  return below;
}

// How many siblings come before each node.
std::vector<std::int32_t> sibling_ranks(std::span<const std::int32_t> parents) {
  std::vector<std::int32_t> ranks(parents.size(), 0);
  std::vector<std::int32_t> children(parents.size(), 0);
  for (std::size_t i = 1; i < parents.size(); ++i) {
    ranks[i] = children[static_cast<std::size_t>(parents[i])]++;
  }
  return ranks;
}

// The nodes along `emitted`, the root first, as far as the tree holds them.
std::vector<std::size_t> follow(const ScoredTree& tree, std::span<const std::int64_t> emitted) {
  std::vector<std::size_t> path;
  if (tree.parents.empty()) return path;
  path.push_back(0);
  for (const std::int64_t token : emitted) {
    const std::size_t node = path.back();
    std::size_t child = node + 1;
    while (child < tree.parents.size() &&
           (static_cast<std::size_t>(tree.parents[child]) != node || tree.tokens[child] != token)) {
      ++child;
    }
    if (child == tree.parents.size()) break;
    path.push_back(child);
  }
  return path;
}

}  // namespace

std::vector<double> log_chances(const ScoredTree& tree, TableShape shape,
                                std::span<const double> trust) {
  std::vector<double> table(trust.begin(), trust.end());
  if (tree.scores.empty()) {
    for (std::size_t i = 1; i < table.size(); ++i) {
      if (i % static_cast<std::size_t>(shape.ranks) != 0) {
        table[i] = std::min(table[i], table[i - 1]);
      }
    }
  }
  const std::vector<double> below = below_parent(tree);
  const std::vector<std::int32_t> ranks = sibling_ranks(tree.parents);
  std::vector<double> chances(tree.parents.size(), 0.0);
  for (std::size_t i = 1; i < chances.size(); ++i) {
    const double chance = below[i] * table[shape.cell(tree.depths[i] - 1, ranks[i])];
    chances[i] =
        chances[static_cast<std::size_t>(tree.parents[i])] + std::log(std::min(chance, 1.0));
  }
  return chances;
}

std::int64_t observe(const ScoredTree& tree, std::span<const std::int64_t> emitted,
                     TableShape shape, std::span<double> said, std::span<double> seen,
                     std::span<double> tries) {
  const std::vector<std::size_t> path = follow(tree, emitted);
  std::vector<char> is_tried(tree.parents.size(), 0);
  std::vector<char> is_right(tree.parents.size(), 0);
  std::vector<char> has_children(tree.parents.size(), 0);
  for (std::size_t i = 0; i < path.size(); ++i) {
    is_right[path[i]] = 1;
    if (i < emitted.size()) is_tried[path[i]] = 1;  // what follows the last one is not known yet
  }
  const std::vector<double> below = below_parent(tree);
  const std::vector<std::int32_t> ranks = sibling_ranks(tree.parents);
  for (std::size_t i = 1; i < tree.parents.size(); ++i) {
    const auto parent = static_cast<std::size_t>(tree.parents[i]);
    if (!is_tried[parent]) continue;
    const std::size_t cell = shape.cell(tree.depths[parent], ranks[i]);
    said[cell] += below[i];
    seen[cell] += is_right[i];
    if (!has_children[parent]) {
      has_children[parent] = 1;
      tries[static_cast<std::size_t>(std::min(tree.depths[parent], shape.depths - 1))] += 1.0;
    }
  }
  return path.empty() ? 0 : static_cast<std::int64_t>(path.size()) - 1;
}

}  // namespace treeattn::host
