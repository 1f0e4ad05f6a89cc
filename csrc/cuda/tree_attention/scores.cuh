// SPDX-License-Identifier: Apache-2.0
// Rows of a warp, their scores, and who sees what.
#pragma once

#include "cuda/tree_attention/tile_loader.cuh"

namespace treeattn::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = __builtin_inff();

// Of a warp's 16 rows a thread owns rows lane / 4 and that + 8, and in each tile of 8 columns the
// columns 2 (lane % 4) and the next: everywhere below, [2] is over those two rows.
struct ThreadRows {
  int place[2];     // -1: no row
  int position[2];  // of the query
  float slope[2];
};

// What turns a product of q and k into a logit. The rest of it stays in the launch's constants.
struct Logits {
  const TreeAttentionParams& p;
  const AttentionLaunch& l;
  float scale;  // sm_scale times the fp8 scale of K; to base 2 where scores are not bent
};

__device__ __forceinline__ float tanh_by_exp(float x) {
  const float e = exp2_approx(-2.0f * kLog2E * fabsf(x));
  return copysignf((1.0f - e) * reciprocal_approx(1.0f + e), x);
}

template <class Scores>
__device__ __forceinline__ float bend(float score, const Logits& logits, float slope,
                                      int distance) {
  float x = score * logits.scale;
  const float cap = logits.p.logits_soft_cap;
  if (cap > 0.0f) x = cap * tanh_by_exp(x * logits.l.one_over_cap);
  return fmaf(slope, static_cast<float>(distance), x) * kLog2E;
}

// Rows `warp_row` .. + 16 of the row tile.
__device__ __forceinline__ ThreadRows thread_rows(const TreeAttentionParams& p, const RowTile& tile,
                                                  int warp_row) {
  ThreadRows rows;
  const int row_in_warp = thread_here() % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp_row + row_in_warp + 8 * i;
    rows.place[i] = -1;
    rows.position[i] = 0;
    rows.slope[i] = 0.0f;
    if (row >= tile.num_rows) continue;
    const int packed = tile.first_row + row;
    const int place = packed / tile.group_size;
    const int64_t node = row_of_place(p, tile, place);
    if (node < 0) continue;
    rows.place[i] = place;
    rows.position[i] = tile.context_len + p.depths[node];
    if (p.alibi_slopes != nullptr) {
      rows.slope[i] =
          p.alibi_slopes[tile.kv_head * tile.group_size + packed - place * tile.group_size];
    }
  }
  return rows;
}

// Bit c: some row of the warp may see a key of chunk c. The same for all lanes.
template <int kTileKeys>
__device__ __forceinline__ uint32_t chunks_seen(const KeyTable<kTileKeys>& table,
                                                const RowTile& tile, int warp_row, int lane) {
  if (warp_row >= tile.num_rows) return 0;
  const int first_row = tile.first_row + warp_row;
  const int last_row = tile.first_row + min(warp_row + 16, tile.num_rows) - 1;
  const int first_place = first_row / tile.group_size, last_place = last_row / tile.group_size;
  uint32_t chunks = 0;
#pragma unroll
  for (int half = 0; half < kTileKeys / 32; ++half) {
    const int first = table.first[half * 32 + lane], count = table.count[half * 32 + lane];
    const uint32_t keys =
        __ballot_sync(0xffffffff, first <= last_place && first_place - first < count);
    if ((keys & 0xffff) != 0) chunks |= 1u << 2 * half;
    if ((keys >> 16) != 0) chunks |= 2u << 2 * half;
  }
  return chunks;
}

template <bool kBends, int kTileKeys>
__device__ __forceinline__ bool sees(const KeyTable<kTileKeys>& table, int column,
                                     const ThreadRows& rows, int i, int window) {
  const auto behind =
      static_cast<uint32_t>(rows.place[i]) - static_cast<uint32_t>(table.first[column]);
  bool seen = behind < static_cast<uint32_t>(table.count[column]);
  if constexpr (kBends) {
    if (window > 0) seen &= rows.position[i] - table.position[column] < window;
  }
  return seen;
}

// Bends and masks scores of chunk `chunk`: [2] tiles of 8 columns.
template <class Scores, bool kMasked, int kTileKeys>
__device__ __forceinline__ void finish_scores(float (&score)[2][4], int chunk,
                                              const KeyTable<kTileKeys>& table,
                                              const ThreadRows& rows, const Logits& logits,
                                              int lane) {
  const int column_in_tile = lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = chunk * 16 + tile * 8 + column_in_tile + i % 2;
      if constexpr (Scores::kBends) {
        score[tile][i] = bend<Scores>(score[tile][i], logits, rows.slope[i / 2],
                                      table.position[column] - rows.position[i / 2]);
      }
      if constexpr (kMasked) {
        if (!sees<Scores::kBends>(table, column, rows, i / 2, logits.p.window)) {
          score[tile][i] = -kInfinity;
        }
      }
    }
  }
}

}  // namespace treeattn::cuda
