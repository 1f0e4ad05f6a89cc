// SPDX-License-Identifier: Apache-2.0
// One tile of keys: scores, online softmax, values.
#pragma once

#include "cuda/tree_attention/scores.cuh"
#include "cuda/tree_attention/unseen_values.cuh"

namespace treeattn::cuda {

// The softmax so far of the two rows of a thread, over the keys that its warp has seen.
template <class Traits>
struct RowState {
  float out[Traits::kDimTiles][4] = {};  // [2] columns of row 0, of row 1; not yet divided by sum
  float max[2] = {-kInfinity, -kInfinity};  // to base 2
  float sum[2] = {0.0f, 0.0f};              // of the columns of this thread, until reduce_sums
};

// A warp's 16 rows of queries, from warp_row on in the row tile.
template <class Traits>
struct Queries {
  const typename Traits::T* shared;  // the row tile
  int warp_row;
  uint32_t frag[Traits::kQueriesInRegisters ? Traits::kDimSteps : 1][4];

  __device__ __forceinline__ Queries(const typename Traits::T* shared_, int warp_row_)
      : shared(shared_), warp_row(warp_row_) {}

  __device__ __forceinline__ void load(int lane) {
    if constexpr (Traits::kQueriesInRegisters) {
#pragma unroll
      for (int step = 0; step < Traits::kDimSteps; ++step)
        ldmatrix_x4(frag[step], address(step, lane));
    }
  }
  __device__ __forceinline__ const typename Traits::T* address(int step, int lane) const {
    return shared + swizzled<Traits::kHeadDim>(warp_row + lane % 16, 2 * step + lane / 16);
  }
};

// score += Q K^T for the 16 keys of a chunk.
template <class Traits>
__device__ __forceinline__ void multiply_keys(float (&score)[2][4], const Queries<Traits>& queries,
                                              const typename Traits::T* keys, int chunk, int lane) {
  const int key = chunk * 16 + lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int step = 0; step < Traits::kDimSteps; ++step) {
    uint32_t k[4];
    ldmatrix_x4(k, keys + swizzled<Traits::kHeadDim>(key, 2 * step + lane / 8 % 2));
    const uint32_t low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
    if constexpr (Traits::kQueriesInRegisters) {
      mma_m16n8k16<typename Traits::T>(score[0], queries.frag[step], low);
      mma_m16n8k16<typename Traits::T>(score[1], queries.frag[step], high);
    } else {
      uint32_t q[4];
      ldmatrix_x4(q, queries.address(step, lane));
      mma_m16n8k16<typename Traits::T>(score[0], q, low);
      mma_m16n8k16<typename Traits::T>(score[1], q, high);
    }
  }
}

// out += P V for the 16 keys of a chunk.
template <class Traits>
__device__ __forceinline__ void multiply_values(RowState<Traits>& state, const uint32_t (&p)[4],
                                                const typename Traits::T* values, int chunk,
                                                int lane) {
  const int key = chunk * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < Traits::kDimSteps; ++step) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, values + swizzled<Traits::kHeadDim>(key, 2 * step + lane / 16));
    const uint32_t low[2] = {v[0], v[1]}, high[2] = {v[2], v[3]};
    mma_m16n8k16<typename Traits::T>(state.out[2 * step], p, low);
    mma_m16n8k16<typename Traits::T>(state.out[2 * step + 1], p, high);
  }
}

// Scores to weights, in place. Rescales what came before to the new maximum.
template <class Traits, int kChunks>
__device__ __forceinline__ void weigh(float (&score)[kChunks][2][4], RowState<Traits>& state,
                                      float factor) {
  float base[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float top = -kInfinity;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        top = fmaxf(top, fmaxf(score[c][tile][2 * i], score[c][tile][2 * i + 1]));
      }
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
    // The maximum is kept as it is subtracted, factor and rounding included, so that a tile that
    // does not raise it rescales by 1 exactly.
    top = fmaxf(state.max[i], top * factor);
    // A row that has seen nothing yet gets weights of 0 instead of exp(-inf + inf).
    base[i] = top == -kInfinity ? 0.0f : top;
    const float rescale = exp2_approx(state.max[i] - base[i]);
    state.max[i] = top;
    state.sum[i] *= rescale;
#pragma unroll
    for (int tile = 0; tile < Traits::kDimTiles; ++tile) {
      state.out[tile][2 * i] *= rescale;
      state.out[tile][2 * i + 1] *= rescale;
    }
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[c][tile][i] = exp2_approx(fmaf(score[c][tile][i], factor, -base[i / 2]));
        state.sum[i / 2] += score[c][tile][i];
      }
    }
  }
}

// Weights of a chunk as the left factor of P V.
template <class T>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[4], const float (&weight)[2][4]) {
  p[0] = pack2<T>(weight[0][0], weight[0][1]);
  p[1] = pack2<T>(weight[0][2], weight[0][3]);
  p[2] = pack2<T>(weight[1][0], weight[1][1]);
  p[3] = pack2<T>(weight[1][2], weight[1][3]);
}

// All keys of one tile. kFew: the four warps have the same 16 rows, and a chunk of keys each.
// Without kMasked every row sees every key and there is no mask code. With it all warps come here,
// rows or not, because there are barriers: `seen` says which chunks this warp has to look at.
template <class Traits, bool kFew, bool kMasked>
__device__ __forceinline__ void attend_tile(AttentionShared<Traits>& s, int stage,
                                            const KeyTable<Traits::kTileKeys>& table, int num_keys,
                                            RowState<Traits>& state, const Queries<Traits>& queries,
                                            const ThreadRows& rows, const Logits& logits,
                                            int thread) {
  using T = typename Traits::T;
  constexpr int kChunks = kFew ? 1 : Traits::kNumChunks;
  const int warp = thread / 32, lane = thread % 32;
  uint32_t seen = ~0u;
  uint64_t bad_values = 0;
  if constexpr (kMasked) {
    if (thread == 0) count(Counter::kMaskedTiles);
    seen = chunks_seen(table, s.part.tile, queries.warp_row, lane);
    bad_values = find_bad_values<Traits>(s, stage, num_keys);
  }
  if (kFew && warp >= Traits::kNumChunks) seen = 0;  // narrow tiles have fewer chunks than warps
  if constexpr (!kMasked) {
    if (seen == 0 || queries.warp_row >= s.part.tile.num_rows) return;
  }
  float score[kChunks][2][4];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int chunk = kFew ? warp : c;
#pragma unroll
    for (int i = 0; i < 8; ++i) score[c][i / 4][i % 4] = 0.0f;
    if (!kMasked || (seen >> chunk & 1) != 0) {
      multiply_keys(score[c], queries, s.k_tile(stage), chunk, lane);
      finish_scores<typename Traits::Scores, kMasked>(score[c], chunk, table, rows, logits, lane);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) score[c][i / 4][i % 4] = -kInfinity;
    }
  }
  weigh(score, state, Traits::Scores::kBends ? 1.0f : logits.scale);
  uint32_t weights[kChunks][4];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) pack_weights<T>(weights[c], score[c]);
  if constexpr (kMasked) {
    if (bad_values != 0) {
      add_bad_values<Traits, kChunks>(s, stage, table, num_keys, bad_values, kFew ? warp : 0, seen,
                                      weights, rows, logits.p.window, state.out);
    }
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int chunk = kFew ? warp : c;
    if (!kMasked || (seen >> chunk & 1) != 0) {
      multiply_values(state, weights[c], s.v_tile(stage), chunk, lane);
    }
  }
}

}  // namespace treeattn::cuda
