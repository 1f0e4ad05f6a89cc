// SPDX-License-Identifier: Apache-2.0
// The moves themselves, and what a request shows once it has moved.
#pragma once

#include "cuda/remap_kv/order_moves.cuh"
#include "cuda/remap_kv/roles.cuh"

namespace treeattn::cuda {

// Planes that one launch moves. They lie in its parameters, of which all are sent at each launch,
// so most models take the smaller kernel.
inline constexpr int kFewPlanes = 88;
inline constexpr int kMostPlanes = 512;
template <int kPlanes>
struct MovePlanes {
  RemapPlane planes[kPlanes];
  uint8_t widths[kPlanes];  // bytes of a column: 16 where all rows are aligned to it
  int num_planes;
  int64_t num_columns;  // of the plane that has most
  bool finishes;        // whether this launch writes block_table, moved and status
};

inline constexpr int kRowsAtOnce = 16;

template <class V>
__device__ __forceinline__ V load_column(const char* at) {
  if constexpr (sizeof(V) == 16) {
    return load_16_l2(at);
  } else {
    return load_global(reinterpret_cast<const V*>(at));
  }
}
template <class V>
__device__ __forceinline__ void store_column(char* at, const V& value) {
  if constexpr (sizeof(V) == 16) {
    store_16(at, value);
  } else {
    store_global(reinterpret_cast<V*>(at), value);
  }
}

// Makes all moves of a list for the bytes of one column, which no other thread touches: several
// rows are read before the first of them is written, and none is read after it has been
// overwritten.
template <class V>
__device__ __forceinline__ void move_column(const RemapPlane& plane, char* column,
                                            const RowMove* moves, int num_moves) {
  const auto at = [&](int block, int row) {
    return column + block * plane.stride_block + row * plane.stride_row;
  };
  V saved{};
  for (int begin = 0; begin < num_moves; begin += kRowsAtOnce) {
    V rows[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (begin + i >= num_moves) continue;
      const RowMove m = load_move(moves + begin + i);
      if (m.src_block >= 0) rows[i] = load_column<V>(at(m.src_block, m.src_row));
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (begin + i >= num_moves) continue;
      const RowMove m = load_move(moves + begin + i);
      if (m.dst_block < 0) {
        saved = rows[i];
      } else {
        store_column<V>(at(m.dst_block, m.dst_row), m.src_block >= 0 ? rows[i] : saved);
      }
    }
  }
}

template <class V>
__device__ __forceinline__ void move_plane_column(const RemapPlane& plane, int64_t i,
                                                  const RowMove* moves, int num_moves) {
  const int per_head = plane.head_bytes / static_cast<int>(sizeof(V));
  if (i >= int64_t{plane.num_heads} * per_head) return;
  const int at = static_cast<int>(i);
  char* const column = plane.data + int64_t{at / per_head} * plane.stride_head +
                       int64_t{at % per_head} * static_cast<int64_t>(sizeof(V));
  move_column<V>(plane, column, moves, num_moves);
}

__device__ __forceinline__ void finish_request(const RemapKvParams& p, const RemapWorkspace& w,
                                               int request) {
  const bool moves = w.moves_rows(request);
  const auto state = static_cast<RequestState>(load_global(w.states + request));
  if (threadIdx.x == 0) {
    store_global(p.moved + request, moves ? load_global(w.num_moves + request) : 0);
    if (!moves && state != RequestState::kStays) store_global(p.status + request, kInvalid);
  }
  if (!moves) return;
  const int num_writes = load_global(w.num_writes + request);
  const TableWrite* const writes = w.writes + int64_t{request} * 2 * p.path_width;
  for (int i = static_cast<int>(threadIdx.x); i < num_writes; i += kRemapThreads) {
    const TableWrite write = load_global(writes + i);
    store_global(p.block_table + request * p.stride_block_table + write.entry, write.block);
  }
}

// The part of one moving CTA. A thread owns a column of 16 bytes (or fewer, where a plane is not
// aligned) of one plane and moves it through all rows of the path; threads are dealt to the columns
// of all planes in one row. Where moves are ordered across requests, the CTAs of request 0 make all
// of them.
template <int kPlanes>
__device__ __forceinline__ void move_rows(const RemapKvParams& p, const RemapWorkspace& w,
                                          const MovePlanes<kPlanes>& batch, int mover,
                                          int movers_per_request) {
  const int request = mover / movers_per_request;
  const int share = mover % movers_per_request;
  const bool is_ordered = load_global(w.is_ordered()) != 0;
  const int own_moves = w.moves_rows(request) ? load_global(w.num_moves + request) : 0;
  if (share == 0) {
    if (batch.finishes) finish_request(p, w, request);
    if (threadIdx.x == 0) count(Counter::kRowsMoved, int64_t{own_moves} * batch.num_planes);
  }
  if (is_ordered && request != 0) return;
  const RowMove* const moves = is_ordered ? w.ordered : w.moves + int64_t{request} * p.path_width;
  const int num_moves = is_ordered ? load_global(w.num_ordered()) : own_moves;
  if (num_moves == 0) return;
  const int64_t thread = int64_t{share} * kRemapThreads + threadIdx.x;
  const int64_t idx = thread / batch.num_columns;
  if (idx >= batch.num_planes) return;
  const RemapPlane& plane = batch.planes[idx];
  const int64_t column = thread % batch.num_columns;
  switch (batch.widths[idx]) {
    case 16:
      return move_plane_column<uint4>(plane, column, moves, num_moves);
    case 8:
      return move_plane_column<uint2>(plane, column, moves, num_moves);
    case 4:
      return move_plane_column<uint32_t>(plane, column, moves, num_moves);
    case 2:
      return move_plane_column<uint16_t>(plane, column, moves, num_moves);
    default:
      return move_plane_column<uint8_t>(plane, column, moves, num_moves);
  }
}

}  // namespace treeattn::cuda
