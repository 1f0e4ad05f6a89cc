// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace treeattn::host {

struct SequoiaTree {
  std::vector<std::int32_t> parents;  // depth first, siblings by rank
  double expected_tokens;             // the root's included
};

// The tree of at most `num_nodes` nodes and `max_depth` edges below the root with the most expected
// tokens, when sibling i is the accepted one with probability p[i] (Sequoia, arXiv 2402.12374).
// Nodes that add nothing are left out.
// Throws std::invalid_argument for p outside [0, 1], num_nodes < 1 or max_depth < 0.
SequoiaTree sequoia_tree(std::span<const double> p, std::int64_t num_nodes, std::int64_t max_depth);

}  // namespace treeattn::host
