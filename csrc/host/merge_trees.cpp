// SPDX-License-Identifier: Apache-2.0
#include "host/merge_trees.h"

#include <unordered_map>

#include "treeattn/check.h"

namespace treeattn::host {
namespace {

struct Edge {
  std::int32_t parent;  // merged node, the first of its equals
  std::int64_t token;
  bool operator==(const Edge&) const = default;
};

struct EdgeHash {
  std::size_t operator()(const Edge& edge) const {
    constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    const std::uint64_t hash = static_cast<std::uint64_t>(edge.token) * kMultiplier;
    return (hash ^ (hash >> 32)) + static_cast<std::uint64_t>(edge.parent) * kMultiplier;
  }
};

}  // namespace

MergedTree merge_trees(std::span<const TreeView> trees) {
  TREEATTN_CHECK(!trees.empty(), "trees must hold at least one tree, got an empty list");
  for (std::size_t i = 0; i < trees.size(); ++i) {
    TREEATTN_CHECK(!trees[i].tokens.empty(), "trees[", i, "] must have a root, got an empty tree");
    TREEATTN_CHECK(trees[i].tokens[0] == trees[0].tokens[0],
                   "trees must have one root token: trees[0] has ", trees[0].tokens[0], ", trees[",
                   i, "] has ", trees[i].tokens[0]);
  }
  MergedTree merged{
      .tokens = {trees[0].tokens[0]}, .parents = {-1}, .tree = {0}, .node = {0}, .first = {0}};
  std::unordered_map<Edge, std::int32_t, EdgeHash> first_of;
  std::vector<std::int32_t> place;  // of each node of one tree: the first merged node of its path
  for (std::size_t i = 0; i < trees.size(); ++i) {
    const auto& [tokens, parents] = trees[i];
    place.assign(tokens.size(), 0);
    for (std::size_t u = 1; u < tokens.size(); ++u) {
      const auto id = static_cast<std::int32_t>(merged.tokens.size());
      const std::int32_t parent = place[parents[u]];
      place[u] = first_of.try_emplace(Edge{.parent = parent, .token = tokens[u]}, id).first->second;
      merged.tokens.push_back(tokens[u]);
      merged.parents.push_back(parent);
      merged.tree.push_back(static_cast<std::int32_t>(i));
      merged.node.push_back(static_cast<std::int32_t>(u));
      merged.first.push_back(place[u]);
    }
  }
  return merged;
}

}  // namespace treeattn::host
