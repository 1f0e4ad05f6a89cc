// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/check.h"

namespace treeattn::cpu {

// A plan aliases the caller's offsets: what bounds an op's reads is checked by each op again.
inline void check_node_indptr(const char* op, const int32_t* node_indptr, int num_requests,
                              int num_nodes) {
  int previous = 0;
  for (int b = 0; b <= num_requests; ++b) {
    TREEATTN_CHECK(node_indptr[b] >= previous && node_indptr[b] <= num_nodes, op, ": node_indptr[",
                   b, "] must be in [", previous, ", ", num_nodes, "], got ", node_indptr[b]);
    previous = node_indptr[b];
  }
}

}  // namespace treeattn::cpu
