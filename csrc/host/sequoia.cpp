// SPDX-License-Identifier: Apache-2.0
#include "host/sequoia.h"

#include <algorithm>
#include <limits>

#include "treeattn/check.h"

namespace treeattn::host {
namespace {

constexpr std::int64_t kMaxNodes = std::numeric_limits<std::int32_t>::max();

// What the siblings of rank i and after can add at most with m nodes among them and below them,
// when `levels` levels are left, and how: the first of them and all below it take `size(i, m)`.
class Siblings {
 public:
  // `below`: gain(0, .) of the same with one level less.
  Siblings(std::span<const double> p, const std::vector<double>& below)
      : room_(below.size()), sizes_(p.size() * room_, 0), gain_(room_, 0.0) {
    std::vector<double> rest;  // the gain of the siblings after i
    for (std::size_t i = p.size(); i-- > 0;) {
      rest = gain_;
      std::ranges::fill(gain_, 0.0);
      for (std::size_t size = 1; size < room_; ++size) {
        const double own = p[i] * (1.0 + below[size - 1]);
        for (std::size_t m = size; m < room_; ++m) {
          const double gain = own + rest[m - size];
          // On a tie the smaller size stays: the nodes it saves are left to later siblings.
          if (gain > gain_[m]) {
            gain_[m] = gain;
            sizes_[i * room_ + m] = static_cast<std::int32_t>(size);
          }
        }
      }
    }
  }

  const std::vector<double>& gain() const { return gain_; }  // of all siblings, by m
  std::int64_t size(std::size_t i, std::int64_t m) const {
    return i * room_ < sizes_.size() ? sizes_[i * room_ + static_cast<std::size_t>(m)] : 0;
  }

 private:
  std::size_t room_;
  std::vector<std::int32_t> sizes_;  // [siblings, room_], 0: none of this rank or after
  std::vector<double> gain_;
};

struct Frame {  // siblings that are being placed
  std::int32_t parent;
  std::size_t levels;
  std::size_t rank;
  std::int64_t left;  // nodes
};

}  // namespace

SequoiaTree sequoia_tree(std::span<const double> p, std::int64_t num_nodes,
                         std::int64_t max_depth) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    TREEATTN_CHECK(p[i] >= 0 && p[i] <= 1, "p[", i, "] must be in [0, 1], got ", p[i]);
  }
  TREEATTN_CHECK(num_nodes >= 1 && num_nodes <= kMaxNodes,
                 "num_nodes must be in [1, 2^31) (the root counts), got ", num_nodes);
  TREEATTN_CHECK(max_depth >= 0, "max_depth must be >= 0, got ", max_depth);
  p = p.first(std::min(p.size(), static_cast<std::size_t>(num_nodes - 1)));

  std::vector<Siblings> by_levels;  // element l: l + 1 levels are left
  std::vector<double> gain(static_cast<std::size_t>(num_nodes), 0.0);
  while (std::ssize(by_levels) < max_depth) {
    by_levels.emplace_back(p, gain);
    if (by_levels.back().gain() == gain) break;  // so more levels add nothing either
    gain = by_levels.back().gain();
  }

  SequoiaTree tree{.parents = {-1}, .expected_tokens = 1.0 + gain.back()};
  std::vector<Frame> stack;
  const auto place_below = [&](std::int32_t parent, std::size_t levels, std::int64_t left) {
    if (levels > 0) stack.push_back({.parent = parent, .levels = levels, .rank = 0, .left = left});
  };
  place_below(0, by_levels.size(), num_nodes - 1);
  while (!stack.empty()) {
    Frame& siblings = stack.back();
    const std::size_t levels = siblings.levels;
    const std::int64_t size = by_levels[levels - 1].size(siblings.rank, siblings.left);
    if (size == 0) {
      stack.pop_back();
      continue;
    }
    siblings.rank += 1;
    siblings.left -= size;
    const auto id = static_cast<std::int32_t>(tree.parents.size());
    tree.parents.push_back(siblings.parent);
    place_below(id, levels - 1, size - 1);
  }
  return tree;
}

}  // namespace treeattn::host
