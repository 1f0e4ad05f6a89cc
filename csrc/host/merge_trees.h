// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace treeattn::host {

struct TreeView {
  std::span<const std::int64_t> tokens;
  std::span<const std::int32_t> parents;  // valid: -1, then parents[i] < i
};

struct MergedTree {
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::int32_t> tree;   // where each node comes from: the tree,
  std::vector<std::int32_t> node;   // and its node id there
  std::vector<std::int32_t> first;  // the first sibling with the same token, often the node itself
};

// Merges trees with one root token (SpecInfer, arXiv 2305.09781): nodes with equal paths from the
// root are one place in the tree, but each proposal stays a sibling of its own, because a token
// proposed twice is tried twice. The subtrees of equal siblings are joined below the first.
// Siblings come in the order of the trees, then in their order within the tree.
// Throws std::invalid_argument when there is no tree, an empty one, or another root token.
MergedTree merge_trees(std::span<const TreeView> trees);

}  // namespace treeattn::host
