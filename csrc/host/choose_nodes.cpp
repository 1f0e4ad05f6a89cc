// SPDX-License-Identifier: Apache-2.0
#include "host/choose_nodes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace treeattn::host {
namespace {

using Nodes = std::vector<std::size_t>;

// The nodes of all requests, numbered through.
struct Batch {
  std::int64_t num_requests = 0;
  std::int64_t max_depth = 0;  // of `ranked`
  Nodes ranked;                // below a root, fit their request; the likeliest, and parents, first
  std::vector<char> is_first;  // the likeliest child of its parent
  std::vector<char> on_chain;  // a root, or the first below one that is
};

Batch rank(const Forest& forest, const Limits& limits) {
  Batch batch;
  const std::size_t num_nodes = forest.parents.size();
  Nodes request_of(num_nodes);
  for (std::size_t b = 0; b + 1 < forest.offsets.size(); ++b) {
    const auto begin = static_cast<std::size_t>(forest.offsets[b]);
    const auto end = static_cast<std::size_t>(forest.offsets[b + 1]);
    batch.num_requests += begin < end;
    for (std::size_t i = begin; i < end; ++i) {
      request_of[i] = b;
      const bool too_deep = !limits.max_depths.empty() && forest.depths[i] > limits.max_depths[b];
      if (forest.depths[i] > 0 && !too_deep) batch.ranked.push_back(i);
    }
  }
  std::ranges::stable_sort(batch.ranked, [&](std::size_t a, std::size_t b) {
    return forest.scores[a] > forest.scores[b];
  });
  if (!limits.max_nodes.empty()) {
    std::vector<std::int64_t> taken(forest.offsets.size(), 1);  // the root
    std::erase_if(batch.ranked, [&](std::size_t i) {
      const std::size_t b = request_of[i];
      return ++taken[b] > limits.max_nodes[b];
    });
  }

  std::vector<char> has_first(num_nodes, 0);
  batch.is_first.assign(num_nodes, 0);
  batch.on_chain.assign(num_nodes, 0);
  for (const std::size_t i : batch.ranked) {
    const auto start = static_cast<std::size_t>(forest.offsets[request_of[i]]);
    const std::size_t parent = start + static_cast<std::size_t>(forest.parents[i]);
    batch.is_first[i] = !has_first[parent];
    has_first[parent] = 1;
    batch.on_chain[i] = batch.is_first[i] && (forest.depths[i] == 1 || batch.on_chain[parent]);
    batch.max_depth = std::max<std::int64_t>(batch.max_depth, forest.depths[i]);
  }
  return batch;
}

// The best of the prefixes of one order of nodes, if it beats what was found before.
class Best {
 public:
  Best(const Forest& forest, const StepTimes& times, const Batch& batch)
      : forest_(forest), times_(times), batch_(batch) {}

  void try_order(const Nodes& nodes) {
    double accepted = 0.0;
    double draft_ms = 0.0;
    std::vector<std::int64_t> widths(static_cast<std::size_t>(batch_.max_depth), 0);
    double best_rate = -1.0;
    Candidate best;
    for (std::size_t count = 0; count < times_.verify_ms.size(); ++count) {
      if (count > 0) {
        if (count > nodes.size()) break;
        const std::size_t node = nodes[count - 1];
        accepted += std::exp(std::min(forest_.scores[node], 0.0));
        if (batch_.is_first[node] && !times_.draft_ms.empty()) {
          ++widths[static_cast<std::size_t>(forest_.depths[node] - 1)];
          draft_ms = ms_of(widths);
        }
      }
      const double tokens = static_cast<double>(batch_.num_requests) + accepted;
      const double ms = times_.verify_ms[count] + draft_ms;
      if (count > 0 && ms > times_.max_ms) continue;
      if (tokens / ms > best_rate) {
        best_rate = tokens / ms;
        best = {.count = count, .tokens = tokens, .ms = ms};
      }
    }
    if (best_rate > rate_) {
      rate_ = best_rate;
      found_ = best;
      nodes_.assign(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(best.count));
    }
  }

  Chosen chosen() const {
    Chosen chosen{.kept = std::vector<bool>(forest_.parents.size(), false),
                  .rows = batch_.num_requests + static_cast<std::int64_t>(nodes_.size()),
                  .tokens = found_.tokens,
                  .ms = found_.ms};
    for (std::size_t i = 0; i < chosen.kept.size(); ++i) chosen.kept[i] = forest_.depths[i] == 0;
    for (const std::size_t node : nodes_) {
      chosen.kept[node] = true;
      chosen.depth = std::max<std::int64_t>(chosen.depth, forest_.depths[node]);
    }
    return chosen;
  }

 private:
  struct Candidate {
    std::size_t count = 0;
    double tokens = 0.0;
    double ms = 0.0;
  };

  double ms_of(const std::vector<std::int64_t>& widths) const {
    double total = 0.0;
    const double* level = times_.draft_ms.data();
    for (const std::int64_t width : widths) {
      total += level[width];
      level += times_.num_widths;
    }
    return total;
  }

  const Forest& forest_;
  const StepTimes& times_;
  const Batch& batch_;
  Nodes nodes_;
  Candidate found_;
  double rate_ = -1.0;
};

}  // namespace

Chosen choose_nodes(const Forest& forest, const StepTimes& times, const Limits& limits) {
  const Batch batch = rank(forest, limits);
  Best best(forest, times, batch);
  best.try_order({});
  for (const bool chains : {true, false}) {
    const std::int64_t least_depth = times.draft_ms.empty() ? batch.max_depth : 1;
    for (std::int64_t depth = least_depth; depth <= batch.max_depth; ++depth) {
      Nodes nodes;
      std::ranges::copy_if(batch.ranked, std::back_inserter(nodes), [&](std::size_t i) {
        return forest.depths[i] <= depth && (!chains || batch.on_chain[i]);
      });
      best.try_order(nodes);
    }
  }
  return best.chosen();
}

}  // namespace treeattn::host
