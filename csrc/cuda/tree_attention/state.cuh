// SPDX-License-Identifier: Apache-2.0
// From the softmax states of a row tile to its output: over lanes, warps and parts.
#pragma once

#include "cuda/tree_attention/product.cuh"
#include "cuda/tree_attention/schedule.cuh"

namespace treeattn::cuda {

// Floats of one slot: per thread its outputs, then maxima and sums.
template <class Traits>
inline constexpr int64_t kStateFloats = Traits::kNumThreads * (Traits::kDimTiles * 4 + 4);

inline constexpr float kDeadSum = -1.0f;  // of a row whose keys lie outside the pool

// The four lanes of a row add up their columns.
template <class Traits>
__device__ __forceinline__ void reduce_sums(RowState<Traits>& state) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.sum[i] += __shfl_xor_sync(0xffffffff, state.sum[i], 1);
    state.sum[i] += __shfl_xor_sync(0xffffffff, state.sum[i], 2);
  }
}

// Of a part among those whose highest maximum is `top`: 1 exactly where that is its own.
__device__ __forceinline__ float weight_of(float max, float top) {
  return max == -kInfinity ? 0.0f : exp2_approx(max - top);
}

// Few rows: the warps' states of the same 16 rows, each over its own keys, become one in warp 0.
// All threads; the tiles' memory is free.
template <class Traits>
__device__ __forceinline__ void merge_warps(AttentionShared<Traits>& s, RowState<Traits>& state) {
  const int thread = thread_here();
  const int lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (lane % 4 != 0) continue;
    s.warp_max(warp)[lane / 4 + 8 * i] = state.max[i];
    s.warp_sum(warp)[lane / 4 + 8 * i] = state.sum[i];
  }
  __syncthreads();  // all maxima are there
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float top = -kInfinity, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Traits::kNumWarps; ++w) top = fmaxf(top, s.warp_max(w)[lane / 4 + 8 * i]);
#pragma unroll
    for (int w = 0; w < Traits::kNumWarps; ++w) {
      const float weight = weight_of(s.warp_max(w)[lane / 4 + 8 * i], top);
      sum = fmaf(s.warp_sum(w)[lane / 4 + 8 * i], weight, sum);
    }
    const float weight = weight_of(state.max[i], top);
#pragma unroll
    for (int tile = 0; tile < Traits::kDimTiles; ++tile) {
      state.out[tile][2 * i] *= weight;
      state.out[tile][2 * i + 1] *= weight;
    }
    state.max[i] = top;
    state.sum[i] = sum;
  }
  float4* const shared = reinterpret_cast<float4*>(s.bulk);
  if (warp > 0) {
#pragma unroll
    for (int tile = 0; tile < Traits::kDimTiles; ++tile) {
      shared[((warp - 1) * Traits::kDimTiles + tile) * 32 + lane] = make_float4(
          state.out[tile][0], state.out[tile][1], state.out[tile][2], state.out[tile][3]);
    }
  }
  __syncthreads();  // all outputs are there
  if (warp > 0) return;
#pragma unroll
  for (int w = 0; w < Traits::kNumWarps - 1; ++w) {
#pragma unroll
    for (int tile = 0; tile < Traits::kDimTiles; ++tile) {
      const float4 other = shared[(w * Traits::kDimTiles + tile) * 32 + lane];
      state.out[tile][0] += other.x;
      state.out[tile][1] += other.y;
      state.out[tile][2] += other.z;
      state.out[tile][3] += other.w;
    }
  }
  __syncwarp(0xffffffff);  // all is read before the warp writes there again
}

__device__ __forceinline__ void store_floats(float* to, float a, float b, float c, float d) {
  store_16(to, make_uint4(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c),
                          __float_as_uint(d)));
}
__device__ __forceinline__ float4 load_floats(const float* from) {
  const uint4 bits = load_16_l2(from);
  return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                     __uint_as_float(bits.w));
}

template <class Traits>
__device__ __forceinline__ float* state_piece(float* states, int64_t slot, int piece) {
  return states + slot * kStateFloats<Traits> + (piece * Traits::kNumThreads + thread_here()) * 4;
}

// Leaves this part's state in its slot. True for all threads of the CTA whose part is the last to
// arrive; it then sees the states of all parts.
template <class Traits>
__device__ __forceinline__ bool leave_part(const AttentionLaunch& l, AttentionShared<Traits>& s,
                                           const Part& part, const RowState<Traits>& state,
                                           bool has_rows, int* arrivals) {
  if (has_rows) {
#pragma unroll
    for (int tile = 0; tile < Traits::kDimTiles; ++tile) {
      store_floats(state_piece<Traits>(l.states, part.slot, tile), state.out[tile][0],
                   state.out[tile][1], state.out[tile][2], state.out[tile][3]);
    }
    store_floats(state_piece<Traits>(l.states, part.slot, Traits::kDimTiles), state.max[0],
                 state.max[1], state.sum[0], state.sum[1]);
  }
  __threadfence();
  __syncthreads();  // every thread's piece is written before the arrival
  if (threadIdx.x == 0) {
    s.arrived = fetch_add_acq_rel(arrivals + part.row_tile, 1);
    if (s.arrived == part.num_parts - 1) arrivals[part.row_tile] = 0;  // for the next launch
  }
  __syncthreads();  // the order of arrival is known
  __threadfence();
  return s.arrived == part.num_parts - 1;
}

// The state over all parts, added up in the order of the keys whoever comes last.
template <class Traits>
__device__ __forceinline__ void merge_parts(const AttentionLaunch& l, const Part& part,
                                            RowState<Traits>& state) {
  float top[2] = {-kInfinity, -kInfinity};
  bool dead = false;
  for (int i = 0; i < part.num_parts; ++i) {
    const float4 other =
        load_floats(state_piece<Traits>(l.states, slot_of_part(l, part, i), Traits::kDimTiles));
    top[0] = fmaxf(top[0], other.x);
    top[1] = fmaxf(top[1], other.y);
    dead |= other.z == kDeadSum;
  }
  state = {};
  for (int i = 0; i < part.num_parts; ++i) {
    const int64_t slot = slot_of_part(l, part, i);
    const float4 other = load_floats(state_piece<Traits>(l.states, slot, Traits::kDimTiles));
    const float weight[2] = {weight_of(other.x, top[0]), weight_of(other.y, top[1])};
    state.sum[0] = fmaf(other.z, weight[0], state.sum[0]);
    state.sum[1] = fmaf(other.w, weight[1], state.sum[1]);
#pragma unroll
    for (int tile = 0; tile < Traits::kDimTiles; ++tile) {
      const float4 out = load_floats(state_piece<Traits>(l.states, slot, tile));
      state.out[tile][0] = fmaf(out.x, weight[0], state.out[tile][0]);
      state.out[tile][1] = fmaf(out.y, weight[0], state.out[tile][1]);
      state.out[tile][2] = fmaf(out.z, weight[1], state.out[tile][2]);
      state.out[tile][3] = fmaf(out.w, weight[1], state.out[tile][3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.max[i] = top[i];
    if (dead) state.sum[i] = kDeadSum;
  }
}

}  // namespace treeattn::cuda
