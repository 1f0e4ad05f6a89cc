// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_counts.h"

#include <algorithm>

namespace treeattn::cpu {
namespace {

// The children of `node`, and which of them was accepted: -1 for none.
void count_children(const AcceptPathParams& p, int request, int node, int accepted,
                    int64_t* offered, int64_t* taken) {
  const int64_t start = p.node_indptr[request];
  const int64_t end = p.node_indptr[request + 1];
  int rank = 0;
  for (int64_t child = start + node + 1; child < end && rank < p.counts.num_ranks; ++child) {
    if (p.parents[child] != node) continue;
    ++offered[rank];
    if (child - start == accepted) ++taken[rank];
    ++rank;
  }
}

}  // namespace

void count_accepted(const AcceptPathParams& p) {
  const AcceptCounts& counts = p.counts;
  const int64_t width = int64_t{p.max_depth} + 1;
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.status[b] != kOk) continue;
    const int32_t* const path = p.path + b * width;
    const int num_depths = std::min(counts.num_depths, p.max_depth);
    for (int depth = 0; depth < num_depths && path[depth] >= 0; ++depth) {
      int64_t* const offered = counts.data + int64_t{depth} * counts.num_ranks;
      count_children(p, b, path[depth], path[depth + 1], offered,
                     offered + int64_t{counts.num_depths} * counts.num_ranks);
    }
  }
}

}  // namespace treeattn::cpu
