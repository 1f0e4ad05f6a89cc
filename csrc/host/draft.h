// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace treeattn::host {

// A draft tree in depth-first order, the likeliest child first; node 0 is the root.
struct Draft {
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<double> log_probs;  // of the path from the root, 0 at the root
};

// Chosen nodes (token, parent, log_prob) have their parents first and siblings by likelihood; only
// the order changes.
template <class Node>
Draft depth_first(const std::vector<Node>& chosen) {
  constexpr std::int32_t kEnd = -1;
  std::vector<std::int32_t> last_child(chosen.size(), kEnd);
  std::vector<std::int32_t> previous_sibling(chosen.size(), kEnd);
  for (std::size_t i = 1; i < chosen.size(); ++i) {
    previous_sibling[i] = std::exchange(last_child[chosen[i].parent], static_cast<std::int32_t>(i));
  }
  Draft draft;
  std::vector<std::int32_t> new_id(chosen.size());
  std::vector<std::int32_t> stack = {0};
  while (!stack.empty()) {
    const std::int32_t i = stack.back();
    stack.pop_back();
    new_id[i] = static_cast<std::int32_t>(draft.tokens.size());
    draft.tokens.push_back(chosen[i].token);
    draft.parents.push_back(i == 0 ? -1 : new_id[chosen[i].parent]);
    draft.log_probs.push_back(chosen[i].log_prob);
    for (std::int32_t c = last_child[i]; c != kEnd; c = previous_sibling[c]) stack.push_back(c);
  }
  return draft;
}

}  // namespace treeattn::host
