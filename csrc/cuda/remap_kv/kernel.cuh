// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/remap_kv/claims.cuh"
#include "cuda/remap_kv/order_moves.cuh"
#include "cuda/remap_kv/plan_request.cuh"

namespace treeattn::cuda {

__device__ __forceinline__ int request_of_warp() {
  return static_cast<int>(blockIdx.x) * kPlanWarps + static_cast<int>(threadIdx.x) / kWarpSize;
}

// Checks a request and claims its blocks; one warp.
__device__ __forceinline__ void start_request(const RemapKvParams& p, const RemapWorkspace& w,
                                              int request) {
  const RequestState state = state_of(p, request);
  if (threadIdx.x % kWarpSize == 0) {
    store_global(w.states + request, static_cast<int>(state));
    store_global(w.conflicts + request, 0);
  }
  if (state == RequestState::kMoves) claim_blocks(p, w, request);
}

__device__ __forceinline__ void clear_header(const RemapWorkspace& w) {
  store_global(w.num_arrived(), 0);
  store_global(w.num_ordered(), 0);
  store_global(w.is_ordered(), 0);
}

// Of more requests than one CTA plans: claims come first, in a launch of their own, because every
// CTA has to see all of them. One warp per request.
__global__ __launch_bounds__(kPlanThreads,
                             1) void remap_kv_claim_kernel(const __grid_constant__ RemapKvParams p,
                                                           int32_t* const workspace) {
  const RemapWorkspace w(workspace, p.num_requests, p.path_width);
  if (blockIdx.x == 0 && threadIdx.x == 0) clear_header(w);
  if (request_of_warp() < p.num_requests) start_request(p, w, request_of_warp());
}

// Plans kPlanWarps requests per CTA, one warp each. Reads block_table and the accepted paths,
// writes the workspace alone. A single CTA makes the claims itself; of several, the last to arrive,
// which sees what all have written, orders the moves.
__global__ __launch_bounds__(kPlanThreads,
                             1) void remap_kv_plan_kernel(const __grid_constant__ RemapKvParams p,
                                                          int32_t* const workspace) {
  const RemapWorkspace w(workspace, p.num_requests, p.path_width);
  const int request = request_of_warp();
  const bool has_request = request < p.num_requests;
  if (gridDim.x == 1) {
    if (threadIdx.x == 0) clear_header(w);
    if (has_request) start_request(p, w, request);
    __threadfence();
    __syncthreads();  // all claims are made
  }
  if (has_request) {
    const auto state = static_cast<RequestState>(load_global(w.states + request));
    plan_request(p, w, request, state);
    if (state == RequestState::kMoves) check_claims(p, w, request);
  }
  // Warps without a request of their own help to look through the committed blocks.
  const int first = static_cast<int>(blockIdx.x) * kPlanWarps;
  const int num_here = p.num_requests - first < kPlanWarps ? p.num_requests - first : kPlanWarps;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int helped = first + warp % num_here;
  if (load_global(w.states + helped) == static_cast<int>(RequestState::kMoves)) {
    const int num_warps = (kPlanWarps - warp % num_here + num_here - 1) / num_here;
    check_committed(p, w, helped, warp / num_here * kWarpSize + threadIdx.x % kWarpSize,
                    num_warps * kWarpSize);
  }
  __threadfence();
  __syncthreads();  // this CTA's requests are planned
  if (gridDim.x > 1) {
    int* const last = reinterpret_cast<int*>(shared_memory());
    if (threadIdx.x == 0) {
      *last = fetch_add_acq_rel(w.num_arrived(), 1) == static_cast<int>(gridDim.x) - 1;
    }
    __syncthreads();  // whether this CTA is the last is known
    if (*last == 0) return;
  }
  order_moves(p, w);
}

// Planes of one launch: its parameters have 4 KB.
inline constexpr int kPlanesPerLaunch = 88;
struct MovePlanes {
  RemapPlane planes[kPlanesPerLaunch];
  uint8_t widths[kPlanesPerLaunch];  // bytes of a column: 16 where all rows are aligned to it
  int num_planes;
  bool finishes;  // whether this launch writes block_table, moved and status
};

inline constexpr int kMoveThreads = 128;
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
__device__ __forceinline__ void move_plane(const RemapPlane& plane, const RowMove* moves,
                                           int num_moves) {
  const int per_head = plane.head_bytes / static_cast<int>(sizeof(V));
  const int num_columns = plane.num_heads * per_head;
  const auto step = static_cast<int>(gridDim.z) * kMoveThreads;
  for (int i = static_cast<int>(blockIdx.z) * kMoveThreads + static_cast<int>(threadIdx.x);
       i < num_columns; i += step) {
    char* const column = plane.data + int64_t{i / per_head} * plane.stride_head +
                         int64_t{i % per_head} * static_cast<int64_t>(sizeof(V));
    move_column<V>(plane, column, moves, num_moves);
  }
}

// What the request shows once it has moved; nobody reads these in this launch.
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
  for (int i = static_cast<int>(threadIdx.x); i < num_writes; i += kMoveThreads) {
    const TableWrite write = load_global(writes + i);
    store_global(p.block_table + request * p.stride_block_table + write.entry, write.block);
  }
}

// Grid: (requests, planes, CTAs that share a plane's columns). A thread owns a column of 16 bytes
// (or fewer, where a plane is not aligned) of one plane and moves it through all rows of the path;
// where moves are ordered across requests, the CTAs of request 0 make all of them. Runs after the
// plan.
__global__ __launch_bounds__(kMoveThreads) void remap_kv_move_kernel(
    const __grid_constant__ RemapKvParams p, int32_t* const workspace,
    const __grid_constant__ MovePlanes batch) {
  const RemapWorkspace w(workspace, p.num_requests, p.path_width);
  const int request = blockIdx.x;
  const int plane_idx = blockIdx.y;
  if (batch.finishes && blockIdx.y == 0 && blockIdx.z == 0) finish_request(p, w, request);
  const bool is_ordered = load_global(w.is_ordered()) != 0;
  const int own_moves = w.moves_rows(request) ? load_global(w.num_moves + request) : 0;
  if (threadIdx.x == 0 && blockIdx.z == 0) count(Counter::kRowsMoved, own_moves);
  if (is_ordered && request != 0) return;
  const RowMove* const moves = is_ordered ? w.ordered : w.moves + int64_t{request} * p.path_width;
  const int num_moves = is_ordered ? load_global(w.num_ordered()) : own_moves;
  if (num_moves == 0) return;
  const RemapPlane& plane = batch.planes[plane_idx];
  switch (batch.widths[plane_idx]) {
    case 16:
      return move_plane<uint4>(plane, moves, num_moves);
    case 8:
      return move_plane<uint2>(plane, moves, num_moves);
    case 4:
      return move_plane<uint32_t>(plane, moves, num_moves);
    case 2:
      return move_plane<uint16_t>(plane, moves, num_moves);
    default:
      return move_plane<uint8_t>(plane, moves, num_moves);
  }
}

}  // namespace treeattn::cuda
