// SPDX-License-Identifier: Apache-2.0
// Which tile of keys comes after the one that a panel works on, and how its rows are fetched
// meanwhile. Included by VECTOR_SOURCES only.
#pragma once

#include "cpu/panel_rows.h"
#include "cpu/prefetch.h"

namespace treeattn::cpu::TREEATTN_ISA {

// So few that a tile comes from memory more slowly than it is multiplied. They fetch into the L2
// cache, which is up to 1.6 times as fast (Zen 4); many rows hide the slower way and find their
// lines in L1.
inline constexpr int kFewRows = 4 * kRowBlock;

class TilesAhead : public PanelRows {
 protected:
  using PanelRows::PanelRows;

  bool has_few_rows() const { return num_rows_ <= kFewRows; }
  int row_bytes() const { return p_.k_pool.head_dim * element_size(p_.k_pool.dtype); }
  // Blocks of a product, about.
  static int num_blocks(int num_rows, int num_columns) {
    return (num_rows + kRowBlock - 1) / kRowBlock * ((num_columns + kPanel - 1) / kPanel);
  }

  // The tile that comes after a whole one.
  int tile_after(int key) const {
    const int next = key + kTileKeys;
    if (next % kChunkKeys != 0) return next;
    const int next_chunk = key / kChunkKeys + kNumStreams;
    if (next_chunk <= max_position_ / kChunkKeys || next_stream_ < 0)
      return next_chunk * kChunkKeys;
    const int first_chunk = first_key() / kChunkKeys;
    const int skipped = max_int(0, first_chunk - next_stream_ + kNumStreams - 1) / kNumStreams;
    return max_int(first_key(), (next_stream_ + skipped * kNumStreams) * kChunkKeys);
  }

  // Fetches K of the next tile, and V for few rows, or, where that tile is not whole, K and V of
  // the panel's own nodes. `next` keeps the pointers.
  Prefetch fetch_after(int key, int num_packing_pieces, KeyColumns& next) const {
    const int next_key = tile_after(key);
    const bool few = has_few_rows(), whole = is_whole(next_key);
    if (whole) {
      add_context(next, next_key, kTileKeys);
    } else {
      for (int i = 0; i < min_int(panel_.num_nodes, kTileKeys); ++i) {
        add_node(next, tree_.node_at(panel_.first + i), i);
      }
    }
    const int value_blocks = num_blocks(num_rows_, padded_dim_);
    const int all_blocks =
        value_blocks + num_blocks(num_rows_, kTileKeys) + num_packing_pieces / kPiecesPerBlock;
    return {next.rows,
            few || !whole ? next.rows + kTileKeys : nullptr,
            next.count,
            row_bytes(),
            few ? all_blocks : value_blocks,
            few ? 2 : 1};
  }

  int next_stream_ = -1;  // what this thread does after the present stream, or -1
};

}  // namespace treeattn::cpu::TREEATTN_ISA
