// SPDX-License-Identifier: Apache-2.0
// Sizes of the tensor-core kernel, and its shared memory.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/plan_work.h"
#include "cuda/tree_attention/work_line.cuh"

namespace treeattn::cuda {

// Scores as they are: scale, sinks and fp8 scales cost nothing per score.
struct PlainScores {
  static constexpr bool kBends = false;
};
// Soft cap, ALiBi, window, any sign of the scale.
struct BentScores {
  static constexpr bool kBends = true;
};

// T: queries, products and output. Kv: the pool. kHeadDim: padded with zeros up to it.
template <class T_, class Kv_, int kHeadDim_, class Scores_>
struct AttentionTraits {
  using T = T_;
  using Kv = Kv_;
  using Scores = Scores_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kNumWarps = kTileRows / 16;  // 16 rows each: one m16 tile
  static constexpr int kNumThreads = 32 * kNumWarps;
  // 64 keys keep 16 KB of K and of V under way at head_dim 128. At 256 the accumulators alone are
  // 128 registers, and half the keys keep the scores from spilling.
  static constexpr int kTileKeys = kHeadDim <= 128 ? 64 : 32;
  static constexpr int kNumChunks = kTileKeys / 16;  // of 16 keys: one step of k in P V
  static constexpr int kDimTiles = kHeadDim / 8;
  static constexpr int kDimSteps = kHeadDim / 16;
  static constexpr bool kConverts = !std::is_same_v<T, Kv>;
  // Above 128 they would be 64 registers more; then they stay in shared memory.
  static constexpr bool kQueriesInRegisters = kHeadDim <= 128;
  // What a CTA gets on sm_86, sm_89 and sm_120, which at 256 leaves no room for request lines.
  static constexpr int kMostSharedBytes = 99 * 1024;
  static constexpr bool kKeepsLines = kHeadDim <= 128;
  // Read anew for each tile, the thread's number takes no register across the loop.
  static constexpr bool kCarriesThread = !Scores::kBends && kHeadDim > 64;
  static constexpr int kMinCtas = kHeadDim <= 64 ? 3 : kHeadDim <= 128 ? 2 : 1;

  static constexpr int kTileElements = kTileKeys * kHeadDim;
  static constexpr int kStageBytes = 2 * kTileElements * static_cast<int>(sizeof(Kv));
  static constexpr int kConvertedBytes =
      kConverts ? 2 * kTileElements * static_cast<int>(sizeof(T)) : 0;
  static constexpr int kBulkBytes = 2 * kStageBytes + kConvertedBytes;
  static constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(T));
  static_assert(kStageBytes >= kTileRows * kRowBytes || !kQueriesInRegisters,
                "queries pass through the second stage");
  static constexpr int kOutBytes = kTileRows * kHeadDim * static_cast<int>(sizeof(float));
  static_assert(kBulkBytes >= kOutBytes, "few rows: the warps' outputs meet in the tiles' memory");
  static_assert(kHeadDim % 64 == 0, "the swizzle needs eight 16-byte pieces in a row");
};

// What is the same for all threads of a CTA lies here too, not in everyone's registers.
template <class Traits>
struct AttentionShared {
  using T = typename Traits::T;
  using Kv = typename Traits::Kv;

  alignas(128) char bulk[Traits::kBulkBytes];  // stages, or what other phases need
  alignas(128) T queries[Traits::kQueriesInRegisters ? 8 : kTileRows * Traits::kHeadDim];
  KeyTable<Traits::kTileKeys> keys[3];  // of the tile at work and of the two after it
  RequestLine kept_lines[Traits::kKeepsLines ? Traits::kNumThreads : 1];
  Stretch stretch;
  Part part;
  uint32_t bad_values[2];  // bit c: V row c of the tile holds NaN or inf
  int invalid;             // a needed slot lies outside the pool
  int arrived;

  // First row and row past the last of as many requests as lines; before the first tile only.
  __device__ int2* request_rows() { return reinterpret_cast<int2*>(bulk); }
  // Of as many requests; later only where they are kept.
  __device__ RequestLine* lines() {
    return Traits::kKeepsLines
               ? kept_lines
               : reinterpret_cast<RequestLine*>(request_rows() + Traits::kNumThreads);
  }
  // Few rows: maxima of the warps' 16 rows, then sums, past what three of the four warps leave of
  // their outputs. After the last tile only.
  __device__ float* warp_max(int warp) {
    return reinterpret_cast<float*>(bulk + Traits::kOutBytes / Traits::kNumWarps *
                                               (Traits::kNumWarps - 1)) +
           warp * 16;
  }
  __device__ float* warp_sum(int warp) { return warp_max(Traits::kNumWarps + warp); }
  __device__ Kv* k_stage(int stage) {
    return reinterpret_cast<Kv*>(bulk + stage * Traits::kStageBytes);
  }
  __device__ Kv* v_stage(int stage) { return k_stage(stage) + Traits::kTileElements; }
  // Where the products read: the stage itself, or the one tile that fp8 is converted into.
  __device__ T* k_tile(int stage) {
    return reinterpret_cast<T*>(bulk + (Traits::kConverts ? 2 : stage) * Traits::kStageBytes);
  }
  __device__ T* v_tile(int stage) { return k_tile(stage) + Traits::kTileElements; }
  __device__ T* staged_queries() {
    return Traits::kQueriesInRegisters ? reinterpret_cast<T*>(bulk + Traits::kStageBytes) : queries;
  }
};

// Where 16-byte piece `piece` of a row lies in a tile of 16-bit elements: the eight rows that one
// ldmatrix reads fall into different banks.
template <int kHeadDim>
__device__ __forceinline__ int swizzled(int row, int piece) {
  return row * kHeadDim + (piece ^ (row & 7)) * 8;
}

}  // namespace treeattn::cuda
