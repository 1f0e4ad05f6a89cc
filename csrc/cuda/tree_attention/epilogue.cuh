// SPDX-License-Identifier: Apache-2.0
// Writes rows: finished ones, and the zeros of rows that belong to nobody.
#pragma once

#include "cuda/tree_attention/state.cuh"

namespace treeattn::cuda {

__device__ __forceinline__ float scale_of(const KvPool& pool, int head) {
  return pool.scale == nullptr ? 1.0f : pool.scale[head * pool.stride_scale];
}

// What a row's softmax comes to, the sink included.
struct Total {
  float inverse;  // of the denominator, for outputs relative to the maximum
  float lse;
};

__device__ __forceinline__ Total with_sink(const TreeAttentionParams& p, int head, float max,
                                           float sum) {
  float top = max == -kInfinity ? 0.0f : max;
  float weight = 1.0f;
  if (p.sinks != nullptr) {
    const float sink = p.sinks[head] * kLog2E;
    const float above = sum == 0.0f ? sink : fmaxf(top, sink);
    weight = sum == 0.0f ? 0.0f : exp2_approx(top - above);
    sum = sink == -kInfinity ? sum * weight : fmaf(sum, weight, exp2_approx(sink - above));
    top = above;
  }
  if (sum == 0.0f) return {0.0f, -kInfinity};
  return {weight / sum, (top + log2_approx(sum)) * kLn2};
}

// Divides by the sum, the sink included, and writes out and lse of the warp's 16 rows through
// `staging`, shared memory of this warp alone.
template <class Traits>
__device__ __forceinline__ void write_rows(const TreeAttentionParams& p, const AttentionLaunch& l,
                                           const RowTile& tile, int warp_row,
                                           const RowState<Traits>& state, float v_scale,
                                           typename Traits::T* staging) {
  using T = typename Traits::T;
  constexpr int kPieces = Traits::kHeadDim / 8;
  const int lane = thread_here() % 32;
  if (warp_row >= tile.num_rows) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    const int packed = tile.first_row + min(warp_row + row, tile.num_rows - 1);
    const int place = packed / tile.group_size;
    const int head = tile.kv_head * tile.group_size + packed - place * tile.group_size;
    const bool dead = state.sum[i] == kDeadSum;
    const Total total =
        dead ? Total{0.0f, -kInfinity} : with_sink(p, head, state.max[i], state.sum[i]);
    const float inverse = total.inverse * v_scale;
#pragma unroll
    for (int dims = 0; dims < Traits::kDimTiles; ++dims) {
      const float a = state.out[dims][2 * i], b = state.out[dims][2 * i + 1];
      uint32_t* const at = reinterpret_cast<uint32_t*>(
          staging + swizzled<Traits::kHeadDim>(row, dims) + lane % 4 * 2);
      *at = dead ? 0 : pack2<T>(a * inverse, b * inverse);
    }
    if (p.lse != nullptr && lane % 4 == 0 && warp_row + row < tile.num_rows) {
      const int64_t node = row_of_place(p, tile, place);
      if (node >= 0) store_global(p.lse + node * p.num_qo_heads + head, total.lse);
    }
  }
  __syncwarp(0xffffffff);  // the warp's rows are staged
  const int head_dim = p.k_pool.head_dim;
  for (int i = lane; i < 16 * kPieces; i += 32) {
    const int row = i / kPieces, first = i % kPieces * 8;
    if (warp_row + row >= tile.num_rows || first >= head_dim) continue;
    const int packed = tile.first_row + warp_row + row;
    const int place = packed / tile.group_size;
    const int head = tile.kv_head * tile.group_size + packed - place * tile.group_size;
    const int64_t node = row_of_place(p, tile, place);
    if (node < 0) continue;
    T* const out = static_cast<T*>(p.out) + node * p.stride_out_node + head * p.stride_out_head;
    const T* const from = staging + swizzled<Traits::kHeadDim>(row, i % kPieces);
    if (l.wide_out) {
      store_16(out + first, *reinterpret_cast<const uint4*>(from));
    } else {
      for (int e = 0; e < 8 && first + e < head_dim; ++e) store_global(out + first + e, from[e]);
    }
  }
}

// Zeros in rows begin .. end, which all CTAs share out among themselves.
template <class T>
__device__ __forceinline__ void clear_rows(const TreeAttentionParams& p, int begin, int end) {
  for (int node = begin + static_cast<int>(blockIdx.x); node < end;
       node += static_cast<int>(gridDim.x)) {
    for (int head = 0; head < p.num_qo_heads; ++head) {
      T* const out = static_cast<T*>(p.out) + node * p.stride_out_node + head * p.stride_out_head;
      for (int d = thread_here(); d < p.k_pool.head_dim; d += static_cast<int>(blockDim.x)) {
        store_global(out + d, T{});
      }
      if (p.lse != nullptr && threadIdx.x == 0) {
        store_global(p.lse + int64_t{node} * p.num_qo_heads + head, -kInfinity);
      }
    }
  }
}

}  // namespace treeattn::cuda
