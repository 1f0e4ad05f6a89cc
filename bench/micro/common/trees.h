// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "micro/common/random.h"

namespace treeattn::micro {

using Parents = std::vector<int32_t>;  // topological order, -1 at the root

inline Parents chain_tree(int num_nodes) {
  Parents parents;
  for (int i = 0; i < num_nodes; ++i) parents.push_back(i - 1);
  return parents;
}

// The root with all others below it.
inline Parents star_tree(int num_nodes) {
  Parents parents(num_nodes, 0);
  parents[0] = -1;
  return parents;
}

inline std::vector<int> node_depths(const Parents& parents) {
  std::vector<int> depths;
  for (const int32_t parent : parents) depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
  return depths;
}

// One branch down to `max_depth`, then every further node below a random one that is not that deep.
inline Parents deep_tree(int num_nodes, int max_depth, uint64_t seed) {
  Random random(seed);
  Parents parents;
  std::vector<int> depths;
  for (int i = 0; i < num_nodes; ++i) {
    int parent = i - 1;
    if (i > max_depth) {
      do parent = random.below(i);
      while (depths[parent] == max_depth);
    }
    parents.push_back(parent);
    depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
  }
  return parents;
}

}  // namespace treeattn::micro
