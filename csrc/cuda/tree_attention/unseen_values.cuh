// SPDX-License-Identifier: Apache-2.0
// V rows that hold NaN or inf, in tiles where not every row sees every key: 0 * NaN is NaN, so the
// product must not have them. They are rare; a clean tile pays for the search and one barrier.
#pragma once

#include "cuda/tree_attention/scores.cuh"

namespace treeattn::cuda {

template <class T>
inline constexpr uint32_t kExponent = std::is_same_v<T, BFloat16> ? 0x7f80 : 0x7c00;

template <class T>
__device__ __forceinline__ bool has_bad(uint32_t pair) {
  constexpr uint32_t kLow = kExponent<T>, kHigh = kExponent<T> << 16;
  return (pair & kLow) == kLow || (pair & kHigh) == kHigh;
}

// Calls f(key, eight values) for the values of this thread; f may change them.
template <class Traits, class F>
__device__ __forceinline__ void for_each_values(AttentionShared<Traits>& s, int stage, int num_keys,
                                                F&& f) {
  constexpr int kPieces = Traits::kHeadDim / 8;
  auto* const pieces = reinterpret_cast<uint4*>(s.v_tile(stage));
  for (int i = thread_here(); i < num_keys * kPieces; i += Traits::kNumThreads) {
    uint4& piece = pieces[i];  // the swizzle stays within a row
    f(i / kPieces, piece);
  }
}

// Bit c: V row c of the tile holds NaN or inf. All threads of the CTA call it and get the same.
template <class Traits>
__device__ __forceinline__ uint64_t find_bad_values(AttentionShared<Traits>& s, int stage,
                                                    int num_keys) {
  using T = typename Traits::T;
  for_each_values<Traits>(s, stage, num_keys, [&](int key, const uint4& v) {
    if (has_bad<T>(v.x) || has_bad<T>(v.y) || has_bad<T>(v.z) || has_bad<T>(v.w)) {
      atomicOr(&s.bad_values[key / 32], 1u << key % 32);
    }
  });
  __syncthreads();  // the search is complete
  return s.bad_values[0] | uint64_t{s.bad_values[1]} << 32;
}

template <class T>
__device__ __forceinline__ uint32_t without_bad(uint32_t pair) {
  constexpr uint32_t kLow = kExponent<T>, kHigh = kExponent<T> << 16;
  if ((pair & kLow) == kLow) pair &= 0xffff0000;
  if ((pair & kHigh) == kHigh) pair &= 0x0000ffff;
  return pair;
}

// Adds weight * value to `out` for the values that are NaN or inf, in the rows that see them, and
// makes them 0 in the tile. All threads of the CTA; K of the tile is overwritten.
template <class Traits, int kChunks>
__device__ __forceinline__ void add_bad_values(AttentionShared<Traits>& s, int stage,
                                               const KeyTable<Traits::kTileKeys>& table,
                                               int num_keys, uint64_t bad_values, int first_chunk,
                                               uint32_t seen, const uint32_t (&weights)[kChunks][4],
                                               const ThreadRows& rows, int window,
                                               float (&out)[Traits::kDimTiles][4]) {
  using T = typename Traits::T;
  const int thread = thread_here();
  const int lane = thread % 32, warp = thread / 32;
  uint32_t* const shared_weights =
      reinterpret_cast<uint32_t*>(s.k_tile(stage)) + warp * 16 * kChunks * 8;  // [16, 8 kChunks]
  __syncthreads();  // all warps are done with K
  if (threadIdx.x < 2) s.bad_values[threadIdx.x] = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8, pair = c * 8 + i / 2 * 4 + lane % 4;
      shared_weights[row * kChunks * 8 + pair] = weights[c][i];
    }
  }
  __syncwarp(0xffffffff);  // the warp's weights are written
  for (; bad_values != 0; bad_values &= bad_values - 1) {
    const int key = __ffsll(static_cast<long long>(bad_values)) - 1;
    const int local = key - 16 * first_chunk;
    if (local < 0 || local >= 16 * kChunks || (seen >> key / 16 & 1) == 0) continue;
    const T* const values = s.v_tile(stage);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!sees<Traits::Scores::kBends>(table, key, rows, i, window)) continue;
      const float2 pair = unpack2<T>(shared_weights[(lane / 4 + 8 * i) * kChunks * 8 + local / 2]);
      const float weight = local % 2 == 0 ? pair.x : pair.y;
#pragma unroll
      for (int tile = 0; tile < Traits::kDimTiles; ++tile) {
        const T* at = values + swizzled<Traits::kHeadDim>(key, tile) + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if ((at[e].bits & kExponent<T>) == kExponent<T>) {
            out[tile][2 * i + e] = fmaf(weight, to_float(at[e]), out[tile][2 * i + e]);
          }
        }
      }
    }
  }
  __syncthreads();  // all have read what is not finite
  for_each_values<Traits>(s, stage, num_keys, [](int, uint4& v) {
    v = make_uint4(without_bad<T>(v.x), without_bad<T>(v.y), without_bad<T>(v.z),
                   without_bad<T>(v.w));
  });
  __syncthreads();  // values are finite
}

}  // namespace treeattn::cuda
