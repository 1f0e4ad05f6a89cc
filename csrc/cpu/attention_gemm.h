// SPDX-License-Identifier: Apache-2.0
// The two products of attention on one tile of keys. Included by VECTOR_SOURCES only.
// Every result is one chain of fused multiply-adds in a fixed order (over head_dim for scores, over
// keys for values), so its bits do not depend on which other rows or keys share the tile.
#pragma once

#include "cpu/vec.h"

namespace treeattn::cpu::TREEATTN_ISA {

inline constexpr int kTileKeys = 64;
// Accumulators that fit the register file: 6 x 4 of 32 (AVX-512), 6 x 2 of 16 (AVX2).
inline constexpr int kRowBlock = 6;
inline constexpr int kVecBlock = Vec::kLanes == 16 ? 4 : 2;

// scores[r][c] = sum over d of q[r][d] * k_transposed[d][c]
template <int kRows, int kVecs>
inline void score_block(const float* q, int q_stride, const float* k_transposed, int head_dim,
                        float* scores) {
  Vec sum[kRows][kVecs];
  for (auto& row : sum) {
    for (auto& vec : row) vec = broadcast(0.0f);
  }
  for (int d = 0; d < head_dim; ++d) {
    Vec k[kVecs];
    for (int c = 0; c < kVecs; ++c) k[c] = load(k_transposed + d * kTileKeys + c * Vec::kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec q_rd = broadcast(q[r * q_stride + d]);
      for (int c = 0; c < kVecs; ++c) sum[r][c] = fma(q_rd, k[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVecs; ++c) store(scores + r * kTileKeys + c * Vec::kLanes, sum[r][c]);
  }
}

// out[r][c] = out[r][c] * rescale[r] + sum over keys of weights[r][key] * v_rows[key][c]
template <int kRows, int kVecs>
inline void value_block(const float* weights, const float* const* v_rows, int column, int num_keys,
                        const float* rescale, float* out, int out_stride) {
  Vec sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVecs; ++c) {
      sum[r][c] = load(out + r * out_stride + c * Vec::kLanes) * broadcast(rescale[r]);
    }
  }
  for (int key = 0; key < num_keys; ++key) {
    Vec v[kVecs];
    for (int c = 0; c < kVecs; ++c) v[c] = load(v_rows[key] + column + c * Vec::kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(weights[r * kTileKeys + key]);
      for (int c = 0; c < kVecs; ++c) sum[r][c] = fma(weight, v[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVecs; ++c) store(out + r * out_stride + c * Vec::kLanes, sum[r][c]);
  }
}

template <int kN>
struct Count {
  static constexpr int value = kN;
};

// Calls f with Count<n>, for 1 <= n <= kMax.
template <int kMax, class F>
inline void with_count(int n, F&& f) {
  if (n == kMax) return f(Count<kMax>{});
  if constexpr (kMax > 1) with_count<kMax - 1>(n, f);
}

// Calls block(first_row, first_vec, Count<rows>, Count<vecs>) until num_rows x num_vecs is covered.
template <class Block>
inline void for_each_block(int num_rows, int num_vecs, Block&& block) {
  for (int vec = 0; vec < num_vecs; vec += kVecBlock) {
    const int vecs = num_vecs - vec < kVecBlock ? num_vecs - vec : kVecBlock;
    with_count<kVecBlock>(vecs, [&](auto vec_count) {
      for (int row = 0; row < num_rows; row += kRowBlock) {
        const int rows = num_rows - row < kRowBlock ? num_rows - row : kRowBlock;
        with_count<kRowBlock>(rows, [&](auto row_count) { block(row, vec, row_count, vec_count); });
      }
    });
  }
}

inline void score_tile(const float* q, int q_stride, int num_rows, const float* k_transposed,
                       int head_dim, int num_keys, float* scores) {
  const int num_vecs = (num_keys + Vec::kLanes - 1) / Vec::kLanes;
  for_each_block(num_rows, num_vecs, [&](int row, int vec, auto rows, auto vecs) {
    score_block<rows.value, vecs.value>(q + row * q_stride, q_stride,
                                        k_transposed + vec * Vec::kLanes, head_dim,
                                        scores + row * kTileKeys + vec * Vec::kLanes);
  });
}

inline void value_tile(const float* weights, int num_rows, const float* const* v_rows,
                       int padded_dim, int num_keys, const float* rescale, float* out) {
  for_each_block(num_rows, padded_dim / Vec::kLanes, [&](int row, int vec, auto rows, auto vecs) {
    value_block<rows.value, vecs.value>(weights + row * kTileKeys, v_rows, vec * Vec::kLanes,
                                        num_keys, rescale + row,
                                        out + row * padded_dim + vec * Vec::kLanes, padded_dim);
  });
}

}  // namespace treeattn::cpu::TREEATTN_ISA
