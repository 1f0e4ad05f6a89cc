// SPDX-License-Identifier: Apache-2.0
#include "cpu/remap_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/remap_request.h"

namespace treeattn::cpu {
namespace {

// Swaps table entries so that each whole block of the path whose rows fill one block of nodes
// becomes that block. Entries before the first whole block past the context never take part.
// The path ascends, so sources are met in ascending order and no swap disturbs a later source.
void repoint_blocks(const RemapRequest& r) {
  const int64_t first = (r.context_len + r.block_size - 1) / r.block_size;
  for (int64_t target = first; (target + 1) * r.block_size <= r.context_len + r.num_rows;
       ++target) {
    const int64_t row = target * r.block_size - r.context_len;
    const int64_t source = (r.context_len + r.path[row]) / r.block_size;
    bool whole = source > target;
    for (int i = 0; whole && i < r.block_size; ++i) {
      const int node = r.path[row + i];
      whole = r.context_len + node == source * r.block_size + i && r.is_default(node);
    }
    if (whole) std::swap(r.table[target], r.table[source]);
  }
}

RowPlace place_of(int64_t slot, int block_size) {
  return {.block = slot / block_size, .row = slot % block_size};
}

}  // namespace

RemapMoves plan_moves(const RemapKvParams& p) {
  RemapMoves moves{.rows = {}, .group_indptr = {0}, .staged = false};
  std::vector<bool> by_default;
  for (int b = 0; b < p.num_requests; ++b) {
    p.moved[b] = 0;
    const RemapRequest r = remap_request(p, b);
    by_default.clear();
    for (int k = 0; k < r.num_rows; ++k) by_default.push_back(r.is_default(r.path[k]));
    repoint_blocks(r);
    for (int k = 0; k < r.num_rows; ++k) {
      const int64_t src = r.slots[r.path[k]], dst = r.slot(r.context_len + k);
      if (src == dst) continue;
      // Default slots only ever move towards the context, behind everything still to be read.
      // A custom slot may lie anywhere, even where another request's path goes.
      if (!by_default[k]) moves.staged = true;
      moves.rows.push_back(
          {.src = place_of(src, p.block_size), .dst = place_of(dst, p.block_size)});
      ++p.moved[b];
    }
    moves.group_indptr.push_back(static_cast<int64_t>(moves.rows.size()));
  }
  if (moves.staged) moves.group_indptr = {0, static_cast<int64_t>(moves.rows.size())};
  return moves;
}

void move_rows(const RemapKvParams& p, const RemapMoves& moves, int64_t begin, int64_t end) {
  const auto at = [](const RemapPlane& plane, const RowPlace& place, int head) {
    return plane.data + place.block * plane.stride_block + place.row * plane.stride_row +
           head * plane.stride_head;
  };
  std::vector<char> stage;
  for (int64_t item = begin; item < end; ++item) {
    const RemapPlane& plane = p.planes[item / moves.num_groups()];
    const int64_t group = item % moves.num_groups();
    const RowMove* const first = moves.rows.data() + moves.group_indptr[group];
    const RowMove* const last = moves.rows.data() + moves.group_indptr[group + 1];
    for (int head = 0; head < plane.num_heads; ++head) {
      if (!moves.staged) {
        for (const RowMove* move = first; move != last; ++move) {
          std::memcpy(at(plane, move->dst, head), at(plane, move->src, head), plane.head_bytes);
        }
        continue;
      }
      stage.resize((last - first) * int64_t{plane.head_bytes});
      char* staged = stage.data();
      for (const RowMove* move = first; move != last; ++move, staged += plane.head_bytes) {
        std::memcpy(staged, at(plane, move->src, head), plane.head_bytes);
      }
      staged = stage.data();
      for (const RowMove* move = first; move != last; ++move, staged += plane.head_bytes) {
        std::memcpy(at(plane, move->dst, head), staged, plane.head_bytes);
      }
    }
  }
}

}  // namespace treeattn::cpu
