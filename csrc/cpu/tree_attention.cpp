// SPDX-License-Identifier: Apache-2.0
#include "cpu/tree_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/isa.h"

namespace treeattn::cpu {
namespace {

constexpr int kTileRows = 64;
constexpr int kTileKeys = 64;
constexpr int kMaxLanes = 16;

int group_size(const TreeAttentionParams& p) { return p.num_qo_heads / p.k_pool.num_kv_heads; }

int tile_nodes(const TreeAttentionParams& p) { return std::max(1, kTileRows / group_size(p)); }

}  // namespace

std::vector<AttentionTile> attention_tiles(const TreeAttentionParams& p) {
  const int step = tile_nodes(p);
  std::vector<AttentionTile> tiles;
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.status[b] != 0) continue;
    const int num_nodes = p.node_indptr[b + 1] - p.node_indptr[b];
    for (int first = 0; first < num_nodes; first += step) {
      for (int head = 0; head < p.k_pool.num_kv_heads; ++head) {
        tiles.push_back({.request = b,
                         .first = first,
                         .num_nodes = std::min(step, num_nodes - first),
                         .kv_head = head});
      }
    }
  }
  return tiles;
}

AttentionScratch attention_scratch(const TreeAttentionParams& p) {
  const int64_t rows = int64_t{tile_nodes(p)} * group_size(p);
  const int64_t padded_dim = (p.k_pool.head_dim + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
  AttentionScratch s{};
  int64_t size = 0;
  const auto take = [&size](int64_t count) {
    const int64_t offset = size;
    size += (count + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
    return offset;
  };
  s.q = take(rows * padded_dim);
  s.out = take(rows * padded_dim);
  s.max = take(rows);
  s.sum = take(rows);
  s.rescale = take(rows);
  s.k_transposed = take(padded_dim * kTileKeys);
  s.v_rows = take(kTileKeys * padded_dim);
  s.scores = take(rows * kTileKeys);
  s.compact = take(rows * kTileKeys);
  s.union_nodes = take(2 * int64_t{p.num_words} * 32 + 2);  // node ids, then their first by depth
  s.size = size;
  return s;
}

AttendTile attend_tile_kernel() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      return avx512_bf16::attend_tile;
    case Isa::kAvx512:
      return avx512::attend_tile;
    case Isa::kAvx2:
      return avx2::attend_tile;
#endif
    default:
      return portable::attend_tile;
  }
}

void clear_unowned_rows(const TreeAttentionParams& p) {
  const auto clear = [&p](int begin, int end) {
    for (int node = begin; node < end; ++node) {
      for (int head = 0; head < p.num_qo_heads; ++head) {
        const int64_t offset = node * p.stride_out_node + head * p.stride_out_head;
        std::memset(static_cast<char*>(p.out) + offset * element_size(p.dtype), 0,
                    size_t(p.k_pool.head_dim) * element_size(p.dtype));
        if (p.lse != nullptr) {
          p.lse[int64_t{node} * p.num_qo_heads + head] = -std::numeric_limits<float>::infinity();
        }
      }
    }
  };
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.status[b] != 0) clear(p.node_indptr[b], p.node_indptr[b + 1]);
  }
  clear(p.num_requests ? p.node_indptr[p.num_requests] : 0, p.num_nodes);
}

}  // namespace treeattn::cpu
