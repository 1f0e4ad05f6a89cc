// SPDX-License-Identifier: Apache-2.0
#include "host/best_first.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <vector>

#include "treeattn/check.h"

namespace treeattn::host {
namespace {

constexpr std::int64_t kMaxNodes = std::numeric_limits<std::int32_t>::max();

// The tokens of one level, likeliest first, sorted only as far as they are asked for.
class Level {
 public:
  // Keeps the `limit` likeliest tokens of `law`.
  template <class T>
  Level(std::span<const T> law, std::int64_t level, std::int64_t limit) {
    if (limit == 0) return;
    bool full = false;  // then waiting_ is a heap with the worst on top
    for (std::size_t token = 0; token < law.size(); ++token) {
      TREEATTN_CHECK(!std::isnan(law[token]), "log_probs must be log probabilities, got log_probs[",
                     level, ", ", token, "] = nan");
      const Ranked ranked{.log_prob = std::min(static_cast<double>(law[token]), 0.0),
                          .token = static_cast<std::int64_t>(token)};
      if (ranked.log_prob == -std::numeric_limits<double>::infinity()) continue;
      if (!full) {
        waiting_.push_back(ranked);
        full = std::ssize(waiting_) == limit;
        if (full) std::ranges::make_heap(waiting_, better);
      } else if (better(ranked, waiting_.front())) {
        std::ranges::pop_heap(waiting_, better);
        waiting_.back() = ranked;
        std::ranges::push_heap(waiting_, better);
      }
    }
    std::ranges::make_heap(waiting_, worse);
  }

  struct Ranked {
    double log_prob;
    std::int64_t token;
  };

  // The token of this rank, counted from 0, or null when there are fewer.
  const Ranked* find(std::size_t rank) {
    while (sorted_.size() <= rank) {
      if (waiting_.empty()) return nullptr;
      std::ranges::pop_heap(waiting_, worse);
      sorted_.push_back(waiting_.back());
      waiting_.pop_back();
    }
    return &sorted_[rank];
  }

 private:
  static bool better(const Ranked& a, const Ranked& b) {
    return a.log_prob != b.log_prob ? a.log_prob > b.log_prob : a.token < b.token;
  }
  static bool worse(const Ranked& a, const Ranked& b) { return better(b, a); }

  std::vector<Ranked> sorted_;
  std::vector<Ranked> waiting_;  // in the end a heap with the best on top
};

struct Chosen {
  std::int64_t token;
  std::int32_t parent;
  double log_prob;
};

struct Candidate {
  double log_prob;
  std::int64_t found;  // how many were found before it
  std::int64_t token;
  std::int32_t parent;
  std::int32_t level;
  std::size_t rank;  // among the tokens of its level, and so among its siblings

  bool operator<(const Candidate& other) const {  // less urgent
    return log_prob != other.log_prob ? log_prob < other.log_prob : found > other.found;
  }
};

}  // namespace

template <class T>
Draft best_first(std::span<const T> log_probs, std::int64_t vocab_size, std::int64_t num_nodes,
                 std::int64_t root_token) {
  TREEATTN_CHECK(num_nodes >= 1 && num_nodes <= kMaxNodes,
                 "num_nodes must be in [1, 2^31) (the root counts), got ", num_nodes);
  std::vector<Level> levels;
  for (auto rest = log_probs; !rest.empty(); rest = rest.subspan(vocab_size)) {
    levels.emplace_back(rest.first(vocab_size), std::ssize(levels), num_nodes - 1);
  }
  std::vector<Chosen> chosen = {{.token = root_token, .parent = -1, .log_prob = 0.0}};
  std::priority_queue<Candidate> queue;
  std::int64_t num_found = 0;
  const auto push = [&](std::int32_t parent, std::int32_t level, std::size_t rank) {
    if (level == std::ssize(levels)) return;
    if (const Level::Ranked* next = levels[level].find(rank)) {
      queue.push({.log_prob = chosen[parent].log_prob + next->log_prob,
                  .found = num_found++,
                  .token = next->token,
                  .parent = parent,
                  .level = level,
                  .rank = rank});
    }
  };
  push(0, 0, 0);
  while (std::ssize(chosen) < num_nodes && !queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const auto id = static_cast<std::int32_t>(chosen.size());
    chosen.push_back({.token = best.token, .parent = best.parent, .log_prob = best.log_prob});
    push(best.parent, best.level, best.rank + 1);
    push(id, best.level + 1, 0);
  }
  return depth_first(chosen);
}

template Draft best_first(std::span<const float>, std::int64_t, std::int64_t, std::int64_t);
template Draft best_first(std::span<const double>, std::int64_t, std::int64_t, std::int64_t);

}  // namespace treeattn::host
