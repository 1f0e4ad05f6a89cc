// SPDX-License-Identifier: Apache-2.0
// What the planning CTAs of remap_kv leave for each other and for those that move.
#pragma once

#include "cuda/common/ptx.cuh"
#include "treeattn/plan_tree.h"
#include "treeattn/remap_kv.h"

namespace treeattn::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;
inline constexpr int kRemapThreads = 256;
inline constexpr int kRemapWarps = kRemapThreads / kWarpSize;

// One row of every plane. A move may also only save its row (no destination) or only write what
// was saved last (no source): so a circle of moves is opened.
struct alignas(16) RowMove {
  int src_block;  // -1: what was saved
  int src_row;
  int dst_block;  // -1: to be saved
  int dst_row;
};
static_assert(sizeof(RowMove) == 16);

struct TableWrite {
  int entry;
  int block;
};

enum class RequestState : int {
  kStays,  // nothing moves
  kMoves,
  kInvalid,
};

// The parts of the workspace. R = num_requests * path_width.
struct RemapWorkspace {
  RowMove* moves;      // [num_requests, path_width], ascending along each path
  RowMove* ordered;    // [R + R / 2], all moves when some row starts from a slot of its own
  TableWrite* writes;  // [num_requests, 2 * path_width]
  int* sources;        // [num_requests, path_width + 1], see repoint_blocks
  int* targets;        // [num_requests, path_width + 1]
  int* successors;     // [R], see order_moves
  int* awaited;        // [R]
  int* states;         // [num_requests], RequestState
  int* conflicts;      // [num_requests], not 0: lists a block that is not its own
  int* num_moves;      // [num_requests]
  int* num_writes;     // [num_requests]
  int* custom;         // [num_requests], not 0: some row starts from a slot of its own
  int* totals;         // [2], see below
  uint32_t* owners;    // [num_blocks], who claims a block; see claim_blocks

  __host__ __device__ RemapWorkspace(int32_t* at, int num_requests, int path_width) {
    const int64_t requests = num_requests, rows = requests * path_width;
    const auto take = [&at](int64_t count) {
      int32_t* const part = at;
      at += count;
      return part;
    };
    moves = reinterpret_cast<RowMove*>(take(4 * rows));
    ordered = reinterpret_cast<RowMove*>(take(4 * (rows + rows / 2)));
    writes = reinterpret_cast<TableWrite*>(take(4 * rows));
    sources = take(rows + requests);
    targets = take(rows + requests);
    successors = take(rows);
    awaited = take(rows);
    states = take(requests);
    conflicts = take(requests);
    num_moves = take(requests);
    num_writes = take(requests);
    custom = take(requests);
    totals = take(2);
    owners = reinterpret_cast<uint32_t*>(at);
  }

  __device__ __forceinline__ int* num_ordered() const { return totals; }
  __device__ __forceinline__ int* is_ordered() const { return totals + 1; }

  __device__ __forceinline__ bool moves_rows(int request) const {
    return load_global(states + request) == static_cast<int>(RequestState::kMoves) &&
           load_global(conflicts + request) == 0;
  }
};

}  // namespace treeattn::cuda
