// SPDX-License-Identifier: Apache-2.0
// fp32 attention without tensor cores: exact products, one row at a time. Its keys are the row's
// own path, in the order of their positions, so a row's bits follow from its path alone.
#pragma once

#include "cuda/tree_attention/epilogue.cuh"

namespace treeattn::cuda {

inline constexpr int kRowWarps = 4;  // rows of a CTA
// CTAs per multiprocessor: left to itself the compiler wants more and spills on some archs.
inline constexpr int kRowCtas = 5;
inline constexpr int kMaxHeadDim = 256;

struct RowShared {
  float query[kRowWarps][kMaxHeadDim];
  int64_t v_offset[kRowWarps][32];  // elements; -1: not a key of the row
  float weight[kRowWarps][32];
  int invalid[kRowWarps];
};

// The live request that owns row `node`, or -1; the same for all lanes.
__device__ inline int owner_of(const TreeAttentionParams& p, int node, int lane) {
  for (int first = 0; first < p.num_requests; first += 32) {
    const int request = first + lane;
    const bool owns = request < p.num_requests && p.node_indptr[request] <= node &&
                      node < p.node_indptr[request + 1] && is_live(p, request);
    const uint32_t owners = __ballot_sync(0xffffffff, owns);
    if (owners != 0) return first + __ffs(static_cast<int>(owners)) - 1;
  }
  return -1;
}

// Sum of q[d] k[d], in the order of d.
template <class Kv>
__device__ __forceinline__ float dot(const float* query, const Kv* k, int head_dim, bool wide) {
  constexpr int kPer16 = kElementsPer16<Kv>;
  float sum = 0.0f;
  for (int first = 0; first < head_dim; first += kPer16) {
    const uint4 bytes = wide ? load_16(k + first) : gather_16(k, first, head_dim);
    Pack<Kv, kPer16> pack;
    __builtin_memcpy(&pack, &bytes, 16);
#pragma unroll
    for (int i = 0; i < kPer16; ++i) {
      if (first + i < head_dim) sum = fmaf(query[first + i], to_float(pack.elements[i]), sum);
    }
  }
  return sum;
}

__device__ __forceinline__ float max_over_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
  return x;
}
__device__ __forceinline__ float sum_over_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  return x;
}

// Each warp does one (node, query head), 32 keys at a time: a lane has one key for the scores, and
// every 32nd column for the output. Warps do not wait for each other. Rows without an owner are 0.
template <class Kv>
__global__ __launch_bounds__(32 * kRowWarps, kRowCtas) void tree_attention_rows_kernel(
    const __grid_constant__ TreeAttentionParams p, const __grid_constant__ AttentionLaunch l) {
  RowShared& s = *reinterpret_cast<RowShared*>(shared_memory());
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + warp;
  if (row >= int64_t{p.num_nodes} * p.num_qo_heads) return;
  const int node = static_cast<int>(row / p.num_qo_heads);
  const int head = static_cast<int>(row % p.num_qo_heads);
  const int head_dim = p.k_pool.head_dim;
  float* const out =
      static_cast<float*>(p.out) + node * p.stride_out_node + head * p.stride_out_head;
  const int request = owner_of(p, node, lane);
  float acc[kMaxHeadDim / 32] = {};
  float top = -kInfinity, sum = 0.0f;
  if (lane == 0) s.invalid[warp] = 0;
  if (request >= 0) {
    const int begin = p.node_indptr[request];
    const int depth = p.depths[node];
    // The row as a tile of one node: its ancestors and itself are the keys after the context.
    const RowTile tile{.request = request,
                       .kv_head = head / (p.num_qo_heads / p.k_pool.num_kv_heads),
                       .group_size = 1,
                       .begin = begin,
                       .num_nodes = p.node_indptr[request + 1] - begin,
                       .context_len = p.context_lens[request],
                       .first_row = 0,
                       .num_rows = 1,
                       .first_place = 0,
                       .first_depth = depth,
                       .num_keys = p.context_lens[request] + depth + 1};
    const int position = tile.num_keys - 1;
    const int first_key = p.window > 0 ? max(0, position - p.window + 1) : 0;
    const float scale = p.sm_scale * scale_of(p.k_pool, tile.kv_head);
    const float slope = p.alibi_slopes == nullptr ? 0.0f : p.alibi_slopes[head];
    const bool bends = slope != 0.0f || p.logits_soft_cap > 0.0f;
    const float* q =
        static_cast<const float*>(p.q) + node * p.stride_q_node + head * p.stride_q_head;
    for (int d = lane; d < head_dim; d += 32) s.query[warp][d] = load_global(q + d);
    for (int first = first_key / 32 * 32; first < tile.num_keys; first += 32) {
      __syncwarp(0xffffffff);  // the query is there, and the keys before are done with
      const int index = first + lane;
      const Key key = index < first_key || index >= tile.num_keys
                          ? Key{}
                          : find_path_key(p, tile, node, index, &s.invalid[warp]);
      float score = -kInfinity;
      s.v_offset[warp][lane] = -1;
      if (key.block >= 0) {
        const int64_t k_offset = kv_offset_of(p.k_pool, key, tile.kv_head);
        s.v_offset[warp][lane] = kv_offset_of(p.v_pool, key, tile.kv_head);
        const float product = dot(s.query[warp], static_cast<const Kv*>(p.k_pool.data) + k_offset,
                                  head_dim, l.wide_keys);
        score = product * scale;
        if (p.logits_soft_cap > 0.0f) {
          score = p.logits_soft_cap * tanhf(score / p.logits_soft_cap);
        }
        score = bends ? fmaf(slope, static_cast<float>(index - position), score) * kLog2E
                      : product * (scale * kLog2E);
      }
      const float before = top;
      top = fmaxf(top, max_over_warp(score));
      const float base = top == -kInfinity ? 0.0f : top;
      const float rescale = exp2_approx(before - base);
      const float weight = exp2_approx(score - base);
      sum = fmaf(sum, rescale, weight);
      s.weight[warp][lane] = weight;
      __syncwarp(0xffffffff);  // weights and offsets are there
      for (int i = 0; i < kMaxHeadDim / 32; ++i) acc[i] *= rescale;
      for (int j = 0; j < 32; ++j) {
        const int64_t offset = s.v_offset[warp][j];
        if (offset < 0) continue;
        const Kv* v = static_cast<const Kv*>(p.v_pool.data) + offset;
#pragma unroll
        for (int i = 0; i < kMaxHeadDim / 32; ++i) {
          const int d = lane + 32 * i;
          if (d < head_dim) acc[i] = fmaf(s.weight[warp][j], to_float(load_global(v + d)), acc[i]);
        }
      }
    }
    sum = sum_over_warp(sum);
  }
  __syncwarp(0xffffffff);  // every bad slot was found
  float inverse = 0.0f, lse = -kInfinity;
  if (request >= 0 && s.invalid[warp] == 0) {
    const Total total = with_sink(p, head, top, sum);
    inverse = total.inverse * scale_of(p.v_pool, head / (p.num_qo_heads / p.k_pool.num_kv_heads));
    lse = total.lse;
  }
#pragma unroll
  for (int i = 0; i < kMaxHeadDim / 32; ++i) {
    const int d = lane + 32 * i;
    if (d < head_dim) store_global(out + d, inverse == 0.0f ? 0.0f : acc[i] * inverse);
  }
  if (p.lse != nullptr && lane == 0) store_global(p.lse + row, lse);
}

}  // namespace treeattn::cuda
