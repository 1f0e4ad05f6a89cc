// SPDX-License-Identifier: Apache-2.0
// Attention on tensor cores.
#pragma once

#include "cuda/tree_attention/epilogue.cuh"

namespace treeattn::cuda {

// One part of a row tile. All threads of the CTA; shared memory is free at the call.
//
// Each step waits for the tile that was started a step before, then starts the next one and works
// while it is under way: one barrier per tile, which says both that tile t has landed for everyone
// and that everyone is done with tile t - 1, whose stage and table it hands over. Where the keys of
// tile t + 2 lie is looked up in step t and written in step t + 1.
template <class Traits, bool kFew>
__device__ __forceinline__ void attend_part(const TreeAttentionParams& p, const AttentionLaunch& l,
                                            AttentionShared<Traits>& s) {
  constexpr int kTileKeys = Traits::kTileKeys;
  const Part& part = s.part;
  const RowTile& tile = part.tile;
  const int thread = thread_here();
  const int warp_row = kFew ? 0 : thread / 32 * 16;
  const Logits logits{.p = p,
                      .l = l,
                      .scale = p.sm_scale * scale_of(p.k_pool, tile.kv_head) *
                               (Traits::Scores::kBends ? 1.0f : kLog2E)};
  const int lowest_max_position = tile.context_len + l.work.max_depths()[tile.request];
  const auto keys_of = [&](int t) {
    return min(kTileKeys, (tile.num_keys - t * kTileKeys + 15) / 16 * 16);
  };
  // At 256 every register counts: the thread's number takes none across the loop.
  const auto thread_now = [&] { return Traits::kHeadDim > 128 ? thread_here() : thread; };
  const auto look_up = [&](int t) {
    return t < part.last_tile
               ? find_key(p, l.work, tile, t * kTileKeys + thread_now() % kTileKeys, &s.invalid)
               : Key{};
  };
  if (thread == 0) s.invalid = 0;
  if (thread < 2) s.bad_values[thread] = 0;
  __syncthreads();  // flags are down
  RowState<Traits> state;
  if (part.first_tile < part.last_tile) {
    put_key(p, tile, look_up(part.first_tile), s.keys[0]);
    put_key(p, tile, look_up(part.first_tile + 1), s.keys[1]);
    load_queries<Traits>(p, l, tile, s.staged_queries());
    __syncthreads();  // tables of the first two tiles are written
    load_tile<Traits>(p, l, s, s.keys[0], 0, keys_of(part.first_tile), thread);
    cp_async_commit();
    Key ahead = look_up(part.first_tile + 2);
    const ThreadRows rows = thread_rows(p, tile, warp_row);
    Queries<Traits> queries(s.staged_queries(), warp_row);
    int at = 0, next = 1, after = 2;  // of s.keys: tables of tiles t, t + 1, t + 2
    for (int t = part.first_tile; t < part.last_tile; ++t) {
      const int stage = (t - part.first_tile) % 2;
      cp_async_wait<0>();
      if constexpr (Traits::kConverts) {
        __syncthreads();  // everyone is done with the converted tile
        convert_tile<Traits>(s, stage, keys_of(t), thread_now());
      }
      __syncthreads();  // tile t is there, and tile t - 1 is done with
      if (t == part.first_tile) {
        queries.load(thread_now() % 32);
        if constexpr (Traits::kQueriesInRegisters) __syncthreads();  // their stage is free
      }
      if (t + 1 < part.last_tile) {
        load_tile<Traits>(p, l, s, s.keys[next], 1 - stage, keys_of(t + 1), thread_now());
        cp_async_commit();
      }
      put_key(p, tile, ahead, s.keys[after]);
      ahead = look_up(t + 3);
      const bool masked = (t + 1) * kTileKeys > tile.context_len ||
                          (p.window > 0 && t * kTileKeys <= lowest_max_position - p.window);
      if (thread == 0) count(Counter::kTiles);
      if (masked) {
        attend_tile<Traits, kFew, true>(s, stage, s.keys[at], keys_of(t), state, queries, rows,
                                        logits,
                                        thread_here());  // what masks need is not carried along
      } else {
        attend_tile<Traits, kFew, false>(s, stage, s.keys[at], kTileKeys, state, queries, rows,
                                         logits, Traits::kCarriesThread ? thread : thread_here());
      }
      const int done = at;
      at = next;
      next = after;
      after = done;
    }
  }
  __syncthreads();  // all tiles are done with, and every bad slot was found
  reduce_sums(state);
  if constexpr (kFew) merge_warps<Traits>(s, state);
  if (s.invalid != 0) state.sum[0] = state.sum[1] = kDeadSum;
  const int own_row = thread_now() / 32 * 16;
  if (part.num_parts > 1) {
    const bool has_rows = own_row < tile.num_rows;
    if (!leave_part<Traits>(l, s, part, state, has_rows,
                            l.work.arrivals(p.num_requests, p.num_nodes))) {
      return;
    }
    if (has_rows) merge_parts<Traits>(l, part, state);
  }
  write_rows<Traits>(p, l, tile, own_row, state, scale_of(p.v_pool, tile.kv_head),
                     reinterpret_cast<typename Traits::T*>(s.bulk) + own_row * Traits::kHeadDim);
}

// Grid: as many CTAs as share the work; any number is right. One CTA after the other takes an equal
// stretch of the line of all (row tile, tile of keys) and works on one row tile at a time: four
// warps with 16 rows each over all keys, or, up to 16 rows, with the same rows over a quarter of
// each tile. A row tile that the stretches cut in parts is finished by the CTA that arrives last.
template <class Traits>
__global__ __launch_bounds__(Traits::kNumThreads, Traits::kMinCtas) void tree_attention_kernel(
    const __grid_constant__ TreeAttentionParams p, const __grid_constant__ AttentionLaunch l) {
  AttentionShared<Traits>& s = *reinterpret_cast<AttentionShared<Traits>*>(shared_memory());
  const auto clear = [&p](int begin, int end) { clear_rows<typename Traits::T>(p, begin, end); };
  if (!find_stretch<Traits>(p, l, s, clear)) return;
  for (;;) {
    __syncthreads();  // the stretch is known, and shared memory is free
    if (threadIdx.x == 0) s.part = next_part<Traits>(p, l, s);
    __syncthreads();  // the part is known
    if (s.part.num_parts == 0) return;
    if (s.part.tile.num_rows <= 16 && l.unit_tiles == 0) {
      attend_part<Traits, true>(p, l, s);
    } else {
      attend_part<Traits, false>(p, l, s);
    }
  }
}

template <class Traits>
void launch_attention(const TreeAttentionParams& p, const AttentionLaunch& l, int num_ctas,
                      cudaStream_t stream);

}  // namespace treeattn::cuda
