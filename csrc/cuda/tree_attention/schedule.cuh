// SPDX-License-Identifier: Apache-2.0
// Who does what. All row tiles of all requests and KV heads lie in one line, each as the units of
// its keys, and every CTA takes an equal stretch of the line (stream-K). A unit is one tile of
// keys; or, batch invariant, a fixed run of them, so that a row's parts depend on nothing but its
// own length. The line is measured from the plan by every CTA itself: nothing is read by the host.
#pragma once

#include "cuda/tree_attention/tile_loader.cuh"
#include "treeattn/plan_tree.h"

namespace treeattn::cuda {

// Below this many tiles per part, writing and merging a part costs more than it saves: at 8, the
// part's state is an eighth of the bytes of its keys.
inline constexpr int kMinUnits = 8;

__device__ __forceinline__ int divide_up(int a, int b) { return (a + b - 1) / b; }

// Whether the request can be attended to: the plan accepted it, and nothing that bounds a read has
// changed since.
__device__ inline bool is_live(const TreeAttentionParams& p, int request) {
  const int begin = p.node_indptr[request], end = p.node_indptr[request + 1];
  const int context_len = p.context_lens[request];
  if (p.status[request] != 0 || begin < 0 || end <= begin || end > p.num_nodes) return false;
  if (context_len < 0 || context_len > kMaxKeys - (end - begin)) return false;
  const uint32_t block_size = static_cast<uint32_t>(p.k_pool.block_size);
  return end - begin <= int64_t{p.num_words} * 32 &&
         (static_cast<uint32_t>(context_len) + block_size - 1) / block_size <=
             static_cast<uint32_t>(p.max_blocks);
}

template <int kTileKeys>
__device__ inline RequestLine request_line(const TreeAttentionParams& p, const AttentionLaunch& l,
                                           int request) {
  RequestLine line;
  if (!is_live(p, request)) return line;
  const int num_nodes = p.node_indptr[request + 1] - p.node_indptr[request];
  const int context_len = p.context_lens[request];
  const int group_size = p.num_qo_heads / p.k_pool.num_kv_heads;
  const int most_places = min(num_nodes, divide_up(kTileRows - 1, group_size) + 1);
  const int most_keys = context_len + min(num_nodes, most_places + l.work.max_depths()[request]);
  const int first_key = p.window > 0 ? max(0, context_len - p.window + 1) : 0;
  line.num_row_tiles = divide_up(num_nodes * group_size, kTileRows);
  if (l.unit_tiles == 0) {
    line.first_tile = first_key / kTileKeys;
    line.num_units = divide_up(most_keys, kTileKeys) - line.first_tile;
  } else {
    line.first_tile = first_key / kTileKeys / l.unit_tiles * l.unit_tiles;
    line.num_units = divide_up(divide_up(most_keys, kTileKeys) - line.first_tile, l.unit_tiles);
  }
  return line;
}

// How much of the line is one CTA's.
__device__ inline int64_t units_per_cta(const Line& line, const AttentionLaunch& l) {
  const int64_t equal = max(int64_t{1}, (line.total + gridDim.x - 1) / int64_t{gridDim.x});
  if (l.unit_tiles != 0) return equal;
  const int64_t least = max(equal, int64_t{kMinUnits});
  if (line.longest <= least) return least;
  // Even parts of the longest rows, where that leaves (almost) no CTA without work.
  const int64_t parts = line.longest / least;
  const int64_t even = (line.longest + parts - 1) / parts;
  return equal < kMinUnits || even * 8 <= equal * 9 ? even : least;
}

// Requests first .. + kNumThreads, one per thread.
template <class Traits>
__device__ __forceinline__ void measure_requests(const TreeAttentionParams& p,
                                                 const AttentionLaunch& l,
                                                 AttentionShared<Traits>& s, int first) {
  const int request = first + static_cast<int>(threadIdx.x);
  __syncthreads();  // all are done with the requests before
  if (request < p.num_requests) {
    s.lines()[threadIdx.x] = request_line<Traits::kTileKeys>(p, l, request);
    s.request_rows()[threadIdx.x] = make_int2(p.node_indptr[request], p.node_indptr[request + 1]);
  }
  __syncthreads();  // the lines of these requests are known
}

// Measures the line and finds this CTA's stretch of it; false when that is empty. All threads
// together. Calls clear(first row, last row) for the rows between the live requests.
template <class Traits, class Clear>
__device__ __forceinline__ bool find_stretch(const TreeAttentionParams& p, const AttentionLaunch& l,
                                             AttentionShared<Traits>& s, Clear&& clear) {
  Line line;
  int owned = 0;
  for (int first = 0; first < p.num_requests; first += Traits::kNumThreads) {
    measure_requests<Traits>(p, l, s, first);
    const int count = min(Traits::kNumThreads, p.num_requests - first);
    for (int i = 0; i < count; ++i) {
      const int64_t size = s.lines()[i].size(p.k_pool.num_kv_heads);
      if (size == 0) continue;
      line.total += size;
      line.longest = max(line.longest, s.lines()[i].num_units);
      clear(owned, s.request_rows()[i].x);
      owned = s.request_rows()[i].y;
    }
  }
  clear(owned, p.num_nodes);
  line.per_cta = units_per_cta(line, l);
  const int64_t begin = blockIdx.x * line.per_cta;
  const int64_t end = min(line.total, begin + line.per_cta);
  if (begin >= end) return false;
  int64_t total = 0;
  for (int first = 0; first < p.num_requests; first += Traits::kNumThreads) {
    if (p.num_requests > Traits::kNumThreads) measure_requests<Traits>(p, l, s, first);
    const int count = min(Traits::kNumThreads, p.num_requests - first);
    for (int i = 0; i < count; ++i) {
      const int64_t before = total;
      total += s.lines()[i].size(p.k_pool.num_kv_heads);
      if (static_cast<int>(threadIdx.x) != i || begin < before || begin >= total) continue;
      s.stretch = {.line = line,
                   .begin = begin,
                   .end = end,
                   .first = before,
                   .unit = begin,
                   .request = first + i};
    }
  }
  return true;
}

// Slot of the state that CTA `cta` leaves of a row tile whose units start at `start` of the line.
__device__ __forceinline__ int64_t part_slot(const Line& line, int64_t cta, int64_t start) {
  return 2 * cta + (cta * line.per_cta <= start ? 1 : 0);
}

// Row tiles in the order 0, last, 1, last but one, ...: in a chain the late ones see more nodes,
// and neighbours then cost the same.
__device__ __forceinline__ int zigzag(int i, int count) {
  return i % 2 == 0 ? i / 2 : count - 1 - i / 2;
}

__device__ inline RowTile row_tile(const TreeAttentionParams& p, int request, int kv_head,
                                   int index) {
  RowTile tile;
  tile.request = request;
  tile.kv_head = kv_head;
  tile.group_size = p.num_qo_heads / p.k_pool.num_kv_heads;
  tile.begin = p.node_indptr[request];
  tile.num_nodes = p.node_indptr[request + 1] - tile.begin;
  tile.context_len = p.context_lens[request];
  tile.first_row = index * kTileRows;
  tile.num_rows = min(kTileRows, tile.num_nodes * tile.group_size - tile.first_row);
  tile.first_place = tile.first_row / tile.group_size;
  const int last_place = (tile.first_row + tile.num_rows - 1) / tile.group_size;
  const int64_t first_row = row_of_place(p, tile, tile.first_place);
  tile.first_depth = first_row < 0 ? 0 : min(p.depths[first_row], tile.num_nodes - 1);
  tile.num_keys = tile.context_len + tile.first_depth + last_place - tile.first_place + 1;
  return tile;
}

// The next part of the stretch, which it moves on; one thread. num_parts is 0 when there is none.
template <class Traits>
__device__ inline Part next_part(const TreeAttentionParams& p, const AttentionLaunch& l,
                                 AttentionShared<Traits>& s) {
  Stretch& stretch = s.stretch;
  const Line& line = stretch.line;
  const int64_t unit = stretch.unit;
  if (unit >= stretch.end) return {};
  const auto line_of = [&](int request) {
    return Traits::kKeepsLines && p.num_requests <= Traits::kNumThreads
               ? s.lines()[request]
               : request_line<Traits::kTileKeys>(p, l, request);
  };
  RequestLine request_line = line_of(stretch.request);
  const int num_kv_heads = p.k_pool.num_kv_heads;
  while (unit >= stretch.first + request_line.size(num_kv_heads)) {
    stretch.first += request_line.size(num_kv_heads);
    request_line = line_of(++stretch.request);
  }
  const int request = stretch.request;
  const int64_t item = (unit - stretch.first) / request_line.num_units;
  const int kv_head = static_cast<int>(item / request_line.num_row_tiles);
  const int index =
      zigzag(static_cast<int>(item % request_line.num_row_tiles), request_line.num_row_tiles);
  const int64_t start = stretch.first + item * request_line.num_units;
  const int64_t stop = start + request_line.num_units;
  Part part;
  part.tile = row_tile(p, request, kv_head, index);
  part.row_tile = (first_row_tile(part.tile.begin, request, part.tile.group_size) + index) *
                      p.k_pool.num_kv_heads +
                  kv_head;
  const int num_tiles = divide_up(part.tile.num_keys, Traits::kTileKeys);
  int64_t last = min(stop, stretch.end);
  if (l.unit_tiles == 0) {
    const int64_t first_cta = start / line.per_cta, last_cta = (stop - 1) / line.per_cta;
    part.num_parts = static_cast<int>(last_cta - first_cta + 1);
    part.first_slot = part_slot(line, first_cta, start);
    part.slot = part_slot(line, unit / line.per_cta, start);
    part.first_tile = request_line.first_tile + static_cast<int>(unit - start);
    part.last_tile = request_line.first_tile + static_cast<int>(last - start);
  } else {
    last = unit + 1;
    part.num_parts = request_line.num_units;
    part.first_slot = start;
    part.slot = unit;
    part.first_tile = request_line.first_tile + static_cast<int>(unit - start) * l.unit_tiles;
    part.last_tile = part.first_tile + l.unit_tiles;
  }
  part.last_tile = min(part.last_tile, num_tiles);
  stretch.unit = last;
  return part;
}

// Slot of part i: after the first, each CTA's stretch begins with its part.
__device__ __forceinline__ int64_t slot_of_part(const AttentionLaunch& l, const Part& part, int i) {
  if (i == 0) return part.first_slot;
  return l.unit_tiles == 0 ? part.first_slot / 2 * 2 + 2 * i : part.first_slot + i;
}

}  // namespace treeattn::cuda
