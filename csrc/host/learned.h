// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace treeattn::host {

// A draft tree as its drafter scored it. scores: log probabilities of the paths; empty: none.
struct ScoredTree {
  std::span<const std::int64_t> tokens;
  std::span<const std::int32_t> parents;
  std::span<const std::int32_t> depths;
  std::span<const double> scores;
};

// Tables by the parent's depth and the child's rank among its siblings, row by row; deeper nodes
// and later siblings count as the last ones.
struct TableShape {
  std::int32_t depths;
  std::int32_t ranks;

  std::size_t cell(std::int32_t depth, std::int32_t rank) const {
    const std::int32_t row = depth < depths ? depth : depths - 1;
    return static_cast<std::size_t>(row * ranks + (rank < ranks ? rank : ranks - 1));
  }
};

// Log chances that each path is accepted: the drafter's word below its parent times `trust`, at
// most 1, from the root down. Without scores a child is never trusted more than its elder siblings,
// so that the best of them are the first.
std::vector<double> log_chances(const ScoredTree& tree, TableShape shape,
                                std::span<const double> trust);

// For each node on the accepted path whose next token is in `emitted`, adds what became of its
// children: to `said` what the drafter gave them, to `seen` who was right, to `tries` one by depth
// if there are any. Of equal siblings the first is right. Returns how many of `emitted` the tree
// holds.
std::int64_t observe(const ScoredTree& tree, std::span<const std::int64_t> emitted,
                     TableShape shape, std::span<double> said, std::span<double> seen,
                     std::span<double> tries);

}  // namespace treeattn::host
