// SPDX-License-Identifier: Apache-2.0
// Rows from global into shared memory, 16 bytes at a time where the addresses allow it.
#pragma once

#include "cuda/tree_attention/traits.cuh"

namespace treeattn::cuda {

// What a launch is told beside the params; the same for all its CTAs.
struct AttentionLaunch {
  PlanWork work;
  float* states;
  int unit_tiles;      // 0: keys are split anywhere; else between multiples of so many tiles
  float one_over_cap;  // of logits_soft_cap, where there is one
  bool wide_queries;   // rows start at multiples of 16 bytes, as do all of their 16-byte pieces
  bool wide_keys;
  bool wide_out;
};

// 16 bytes of elements first .. of a row that ends at `head_dim`; the rest is 0. Any alignment.
template <class T>
__device__ __forceinline__ uint4 gather_16(const T* row, int first, int head_dim) {
  Pack<T, kElementsPer16<T>> pack;
#pragma unroll
  for (int i = 0; i < kElementsPer16<T>; ++i) {
    pack.elements[i] = first + i < head_dim ? load_global(row + first + i) : T{};
  }
  uint4 bytes;
  __builtin_memcpy(&bytes, &pack, 16);
  return bytes;
}

// One 16-byte piece of a row, zeros when !valid.
template <class T>
__device__ __forceinline__ void copy_piece(T* shared, const T* row, int first, int head_dim,
                                           bool valid, bool wide) {
  if (wide) {
    cp_async_16(shared, row + first, valid && first < head_dim);
  } else {
    const uint4 bytes = valid ? gather_16(row, first, head_dim) : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(shared) = bytes;
  }
}

// The queries of a row tile, [kTileRows, kHeadDim]; the last of them may be padding. The caller
// commits and waits.
template <class Traits>
__device__ __forceinline__ void load_queries(const TreeAttentionParams& p, const AttentionLaunch& l,
                                             const RowTile& tile, typename Traits::T* shared) {
  using T = typename Traits::T;
  constexpr int kPieces = Traits::kHeadDim / 8;
  const int num_rows = (tile.num_rows + 15) / 16 * 16;
  for (int i = thread_here(); i < num_rows * kPieces; i += Traits::kNumThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool valid = row < tile.num_rows;
    const int packed = tile.first_row + (valid ? row : 0);
    const int place = packed / tile.group_size;
    const int head = tile.kv_head * tile.group_size + packed - place * tile.group_size;
    const int64_t node = row_of_place(p, tile, place);
    const T* q = static_cast<const T*>(p.q) + node * p.stride_q_node + head * p.stride_q_head;
    copy_piece(shared + swizzled<Traits::kHeadDim>(row, piece), q, piece * 8, p.k_pool.head_dim,
               valid && node >= 0, l.wide_queries);
  }
}

// Visits the 16-byte pieces of this thread in one tile of the pools' type: f(key, piece).
template <class Traits, class F>
__device__ __forceinline__ void for_each_piece(int thread, int num_keys, F&& f) {
  constexpr int kPieces = Traits::kHeadDim / kElementsPer16<typename Traits::Kv>;
  constexpr int kStep = Traits::kNumThreads / kPieces;
  static_assert(Traits::kNumThreads % kPieces == 0 && Traits::kTileKeys % kStep == 0);
#pragma unroll
  for (int i = 0; i < Traits::kTileKeys / kStep; ++i) {
    const int key = thread / kPieces + i * kStep;
    if (key < num_keys) f(key, thread % kPieces);
  }
}

// Starts the copies of the first `num_keys` (a multiple of 16) keys of a tile, K and V.
template <class Traits>
__device__ __forceinline__ void load_tile(const TreeAttentionParams& p, const AttentionLaunch& l,
                                          AttentionShared<Traits>& s,
                                          const KeyTable<Traits::kTileKeys>& table, int stage,
                                          int num_keys, int thread) {
  using Kv = typename Traits::Kv;
  constexpr int kPer16 = kElementsPer16<Kv>;
  const auto copy = [&](const KvPool& pool, const int64_t* offsets, Kv* to) {
    for_each_piece<Traits>(thread, num_keys, [&](int key, int piece) {
      const int64_t offset = offsets[key];
      Kv* const shared = to + (Traits::kConverts ? key * Traits::kHeadDim + piece * kPer16
                                                 : swizzled<Traits::kHeadDim>(key, piece));
      copy_piece(shared, static_cast<const Kv*>(pool.data) + offset, piece * kPer16, pool.head_dim,
                 offset >= 0, l.wide_keys);
    });
  };
  copy(p.k_pool, table.k_offset, s.k_stage(stage));
  copy(p.v_pool, table.v_offset, s.v_stage(stage));
}

// fp8 pools: each thread converts the pieces that it copied itself, so its own wait is enough.
template <class Traits>
__device__ __forceinline__ void convert_tile(AttentionShared<Traits>& s, int stage, int num_keys,
                                             int thread) {
  using T = typename Traits::T;
  const auto convert = [&](const typename Traits::Kv* from, T* to) {
    for_each_piece<Traits>(thread, num_keys, [&](int key, int piece) {
      const uint4 bytes =
          *reinterpret_cast<const uint4*>(from + key * Traits::kHeadDim + piece * 16);
      const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
      uint32_t pairs[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        pairs[i] = e4m3x2_to_half2(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)));
        if constexpr (std::is_same_v<T, BFloat16>) {
          const float2 values = unpack_half2(pairs[i]);
          pairs[i] = pack_bf16x2(values.x, values.y);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint4*>(to + swizzled<Traits::kHeadDim>(key, 2 * piece + half)) =
            make_uint4(pairs[4 * half], pairs[4 * half + 1], pairs[4 * half + 2],
                       pairs[4 * half + 3]);
      }
    });
  };
  convert(s.k_stage(stage), s.k_tile(stage));
  convert(s.v_stage(stage), s.v_tile(stage));
}

}  // namespace treeattn::cuda
