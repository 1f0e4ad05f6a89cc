// SPDX-License-Identifier: Apache-2.0
// An order in which moves may be made one after the other, wherever their rows lie.
//
// By default a node lies behind everything that its path's rows are moved to, and in the order of
// the path no row is overwritten before it is read. With a slot mapping of the caller's a row may
// lie anywhere that no context is, even where another request's path goes. Each row is the source
// of at most one move and the destination of at most one, so moves form chains, in which each
// overwrites what the one before it has read, and circles, which are opened by saving one row.
#pragma once

#include "cuda/remap_kv/workspace.cuh"

namespace treeattn::cuda {

__device__ __forceinline__ RowMove load_move(const RowMove* move) {
  const uint4 bytes = load_16_l2(move);
  RowMove m;
  __builtin_memcpy(&m, &bytes, sizeof(m));
  return m;
}
__device__ __forceinline__ void store_move(RowMove* to, const RowMove& m) {
  uint4 bytes;
  __builtin_memcpy(&bytes, &m, sizeof(m));
  store_16(to, bytes);
}

// Called by all threads of one CTA, after all requests have been planned and checked. Lists every
// move of every request that moves in w.ordered if any of them starts from a slot of its own.
__device__ __forceinline__ void order_moves(const RemapKvParams& p, const RemapWorkspace& w) {
  const int num_slots = p.num_requests * p.path_width;  // of moves; not all are taken
  const auto is_taken = [&](int i) {
    const int request = i / p.path_width;
    return w.moves_rows(request) && i % p.path_width < load_global(w.num_moves + request);
  };
  const auto step = static_cast<int>(blockDim.x);
  if (threadIdx.x == 0) {
    store_global(w.num_ordered(), 0);
    store_global(w.is_ordered(), 0);
  }
  __syncthreads();  // nothing is ordered yet
  for (int b = static_cast<int>(threadIdx.x); b < p.num_requests; b += step) {
    if (w.moves_rows(b) && load_global(w.custom + b) != 0) atomicExch(w.is_ordered(), 1);
  }
  __syncthreads();  // is_ordered is known
  if (load_acquire(w.is_ordered()) == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < num_slots; i += step) {
    store_global(w.awaited + i, 0);
  }
  __syncthreads();  // nobody is awaited yet
  // The move that overwrites what move i reads comes after it.
  for (int i = static_cast<int>(threadIdx.x); i < num_slots; i += step) {
    if (!is_taken(i)) continue;
    const RowMove mine = load_move(w.moves + i);
    int successor = -1;
    for (int j = 0; j < num_slots && successor < 0; ++j) {
      if (!is_taken(j)) continue;
      const RowMove other = load_move(w.moves + j);
      if (other.dst_block == mine.src_block && other.dst_row == mine.src_row) successor = j;
    }
    store_global(w.successors + i, successor);
    if (successor >= 0) atomicExch(w.awaited + successor, 1);
  }
  __syncthreads();  // successors are known, and who waits for another
  const auto successor_of = [&](int i) { return load_global(w.successors + i); };
  const int room = num_slots + num_slots / 2;
  for (int i = static_cast<int>(threadIdx.x); i < num_slots; i += step) {
    if (!is_taken(i)) continue;
    const bool starts_chain = load_global(w.awaited + i) == 0;
    // Walks the chain, or the circle: from its smallest member only. Should nodes share a slot,
    // which a plan does not allow, the walk may not come back; it then ends after all moves.
    int length = 1, next = successor_of(i);
    bool smallest = true;
    for (; next >= 0 && next != i && length <= num_slots; next = successor_of(next), ++length) {
      smallest = smallest && next > i;
    }
    const bool opens_circle = !starts_chain && next == i && smallest;
    if (!starts_chain && !opens_circle) continue;
    const int count = length + (opens_circle ? 1 : 0);
    const int at = atomicAdd(w.num_ordered(), count);
    if (at + count > room) continue;
    RowMove* to = w.ordered + at;
    const RowMove first = load_move(w.moves + i);
    if (opens_circle) {
      store_move(to++, {first.src_block, first.src_row, -1, 0});
    } else {
      store_move(to++, first);
    }
    next = successor_of(i);
    for (int k = 1; k < length; ++k, next = successor_of(next)) {
      store_move(to++, load_move(w.moves + next));
    }
    if (opens_circle) store_move(to, {-1, 0, first.dst_block, first.dst_row});
  }
}

}  // namespace treeattn::cuda
