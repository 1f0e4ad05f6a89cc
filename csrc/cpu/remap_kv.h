// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "treeattn/remap_kv.h"

namespace treeattn::cpu {

// Where a row lies in any plane. Split once: a division per plane costs as much as the copy.
struct RowPlace {
  int64_t block;
  int64_t row;
};

// One row of every plane.
struct RowMove {
  RowPlace src;
  RowPlace dst;
};

// Groups are independent of each other.
struct RemapMoves {
  std::vector<RowMove> rows;
  std::vector<int64_t> group_indptr;
  bool staged;  // rows of one group must all be read before one is written

  int64_t num_groups() const { return static_cast<int64_t>(group_indptr.size()) - 1; }
};

// Throws std::invalid_argument at the first breach of the op's rules; writes nothing.
void check_remap_kv(const RemapKvParams& p);

// Re-points whole blocks in block_table, counts `moved`, and lists what is left to copy.
RemapMoves plan_moves(const RemapKvParams& p);

// Copies items [begin, end) of num_planes * num_groups, plane by plane.
void move_rows(const RemapKvParams& p, const RemapMoves& moves, int64_t begin, int64_t end);

}  // namespace treeattn::cpu
