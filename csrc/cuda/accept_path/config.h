// SPDX-License-Identifier: Apache-2.0
// Numbers of accept_path, and how its shared memory and its work are cut.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "treeattn/accept_path.h"
#include "treeattn/residual.h"

namespace treeattn::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffff;

// One CTA reads a row. 512 threads with four 16-byte loads each have 32 KB on the way, two such
// CTAs on an SM more than its share of the bandwidth needs.
inline constexpr int kRowThreads = 512;
inline constexpr int kRowWarps = kRowThreads / kWarpSize;
inline constexpr int kVecBytes = 16;
inline constexpr int kVecsPerLane = 4;
inline constexpr int kChunkVecs = kVecsPerLane * kWarpSize;  // what a warp takes at once

// A search for a cut sorts what is left into bins, one per thread. Copies keep the lanes of a warp
// off each other's bins: many logits lie in few of them.
inline constexpr int kNumBins = kRowThreads;
inline constexpr int kBinBits = 9;
static_assert(kNumBins == 1 << kBinBits);
inline constexpr int kBinCopies = 4;
inline constexpr int kListSize = 2048;  // keys that a search keeps once so few are left

// The first bytes of a row stay in shared memory for the passes after the first, the rest is read
// again through L2. With the bins and the list two CTAs' memory fits an SM of sm_80.
inline constexpr int kStashBytes = 48 * 1024;

// Where things lie in a CTA's shared memory, in bytes. Computed on the host: a kernel adds its
// parameter where it needs an address, instead of keeping addresses in registers.
struct RowLayout {
  static constexpr int kWarpSums = 0, kControl = 256, kChunkSums = 384;
  int chunk_maxima;
  int bins;
  int list;
  int stash;
  int num_stashed;  // vectors
  int bytes;
};

// `draws`: bins and list are needed. `passes_again`: rows are passed over more than once.
constexpr RowLayout row_layout(int vocab_size, int element_bytes, bool draws, bool passes_again) {
  // A row that begins off a 16-byte boundary touches one vector more.
  const int64_t vecs = int64_t{vocab_size} * element_bytes / kVecBytes + 2;
  const int num_chunks = static_cast<int>((vecs + kChunkVecs - 1) / kChunkVecs);
  constexpr int64_t kStashVecs = kStashBytes / kVecBytes;
  const int64_t num_stashed = !passes_again ? 0 : vecs < kStashVecs ? vecs : kStashVecs;
  RowLayout layout{};
  layout.chunk_maxima = RowLayout::kChunkSums + 8 * num_chunks;
  layout.bins = (layout.chunk_maxima + 4 * num_chunks + 15) / 16 * 16;
  layout.list = layout.bins + (draws ? kNumBins * kBinCopies * 8 : 0);
  layout.stash = layout.list + (draws ? kListSize * 4 : 0);
  layout.num_stashed = static_cast<int>(num_stashed);
  layout.bytes = layout.stash + layout.num_stashed * kVecBytes;
  return layout;
}

// What the workspace holds of each node; accept.py counts on it.
inline constexpr int kStepInts = 4;
inline constexpr int kNodeStateInts = 30;
static_assert(sizeof(NodeState) == kNodeStateInts * sizeof(int32_t));

// The cost rule: all rows are read at once, then followed, when that is cheaper than to read one
// row after the other on the way down. Shapes alone decide, so a captured graph decides once.
//
// All rows cost their bytes at the memory's bandwidth. A walk costs up to max_depth + 1 steps that
// wait for each other: some 2 us of latency, or what one SM takes to read a row. A request's walk
// and another's run side by side. H200 figures; on a slower memory both sides grow alike.
inline constexpr double kBytesPerUs = 4.3e6;    // device memory
inline constexpr double kSmBytesPerUs = 0.1e6;  // one SM
inline constexpr double kStepUs = 2.0;          // latency of a step: read, reduce, find the child

constexpr bool reads_all_rows(int64_t num_nodes, int64_t row_bytes, int64_t max_depth) {
  const double row = static_cast<double>(row_bytes);
  const double all_us = static_cast<double>(num_nodes) * row / kBytesPerUs;
  const double step_us = row / kSmBytesPerUs > kStepUs ? row / kSmBytesPerUs : kStepUs;
  return all_us < static_cast<double>(max_depth + 1) * step_us;
}

}  // namespace treeattn::cuda
