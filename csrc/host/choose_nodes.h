// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace treeattn::host {

// The trees of a batch one after the other: request b has the nodes offsets[b] .. offsets[b + 1),
// numbered from 0 in `parents`; those without nodes are inactive. scores: log probabilities that a
// path is accepted, none above its parent's.
struct Forest {
  std::span<const std::int64_t> offsets;
  std::span<const std::int32_t> parents;
  std::span<const std::int32_t> depths;
  std::span<const double> scores;
};

// What a step takes. verify_ms[i]: with i nodes below the roots, all else included but drafting; it
// ends where no more rows may be had. draft_ms: [levels, num_widths], level l asked below w nodes
// at [l - 1, w], 0 where nobody is asked; empty: drafts cost nothing, or are there already.
struct StepTimes {
  std::span<const double> verify_ms;
  std::span<const double> draft_ms;
  std::int64_t num_widths;
  double max_ms;
};

// Most nodes, the root counted, and most depth of each request; empty: no limit.
struct Limits {
  std::span<const std::int64_t> max_nodes;
  std::span<const std::int64_t> max_depths;
};

// kept: by node, true for every root. tokens, ms: expected of the step.
struct Chosen {
  std::vector<bool> kept;
  std::int64_t depth = 0;
  std::int64_t rows = 0;
  double tokens = 0.0;
  double ms = 0.0;
};

// The nodes with most tokens per millisecond. They are taken by score over all requests, for every
// number of rows: from all nodes, and from the chains of the likeliest children alone; with
// draft_ms each of the two down to every depth. Ties go to none, then to chains, fewer levels,
// fewer rows. Exact where a level costs the same at any width.
Chosen choose_nodes(const Forest& forest, const StepTimes& times, const Limits& limits);

}  // namespace treeattn::host
