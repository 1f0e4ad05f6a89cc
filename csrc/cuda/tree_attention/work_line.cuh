// SPDX-License-Identifier: Apache-2.0
// All row tiles of all requests and KV heads lie in one line, each as the units of its keys; see
// schedule.cuh.
#pragma once

#include "cuda/tree_attention/key_table.cuh"

namespace treeattn::cuda {

// The units of one request: every row tile has the same number, some may be empty.
struct RequestLine {
  int num_row_tiles = 0;
  int first_tile = 0;  // of keys; no row sees an earlier one
  int num_units = 0;   // per row tile

  __device__ int64_t size(int num_kv_heads) const {
    return int64_t{num_units} * num_row_tiles * num_kv_heads;
  }
};

struct Line {
  int64_t total = 0;
  int64_t per_cta = 1;
  int longest = 0;  // most units of a row tile
};

// What one CTA does of the line.
struct Stretch {
  Line line;
  int64_t begin, end;  // units
  int64_t first;       // unit of the request at work
  int64_t unit;        // the next one to do
  int request;
};

// The units of one row tile that this CTA does, and who does the others.
struct Part {
  RowTile tile;
  int64_t row_tile;           // over all requests, for the arrivals
  int first_tile, last_tile;  // of keys
  int64_t slot;               // of its state, when there are other parts
  int64_t first_slot;         // of the first part
  int num_parts;              // 0: there is nothing more to do
};

}  // namespace treeattn::cuda
