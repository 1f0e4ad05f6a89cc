// SPDX-License-Identifier: Apache-2.0
// Where each key of a tile lies in the pools, and which rows see it.
#pragma once

#include "cuda/common/plan_work.h"
#include "cuda/common/ptx.cuh"
#include "treeattn/tree_attention.h"

namespace treeattn::cuda {

// One row tile of one request. Its keys are numbered: first the context, then the nodes it needs,
// which are the ancestors of its first node, from the root down, and its own nodes in depth-first
// order. No other node is an ancestor of any of them.
struct RowTile {
  int request, kv_head, group_size;
  int begin;      // row of the request's first node
  int num_nodes;  // of the request
  int context_len;
  int first_row;  // (place, query head of the group) within the request
  int num_rows;
  int first_place;
  int first_depth;  // of the node there: how many of the keys are its ancestors
  int num_keys;
};

template <int kTileKeys>
struct KeyTable {
  int64_t k_offset[kTileKeys];  // elements into the pool; -1: no such key
  int64_t v_offset[kTileKeys];
  int32_t first[kTileKeys];  // the places that see the key: first .. first + count
  int32_t count[kTileKeys];
  int32_t position[kTileKeys];
};

struct Key {
  int block = -1;  // -1: no such key
  int row = 0;
  int first = 0;
  int count = 0;
  int position = 0;
};

// Id of the ancestor of depth `depth`: the set bit with as many below it, because ids grow along a
// path. -1 when there is none.
__device__ inline int ancestor_at(const uint32_t* words, int num_words, int depth) {
  for (int word = 0; word < num_words; ++word) {
    uint32_t bits = words[word];
    const int here = __popc(bits);
    if (depth >= here) {
      depth -= here;
      continue;
    }
    for (; depth > 0; --depth) bits &= bits - 1;
    return word * 32 + __ffs(static_cast<int>(bits)) - 1;
  }
  return -1;
}

// Row of the node at `place` of the request, or -1 when the plan was made for other offsets, which
// its owner may have changed since: a wild row is never read or written.
__device__ __forceinline__ int64_t row_of_place(const TreeAttentionParams& p, const RowTile& tile,
                                                int place) {
  const int node = p.order[tile.begin + place];
  return node >= 0 && node < tile.num_nodes ? tile.begin + int64_t{node} : -1;
}

// False, and *invalid set, for a key that lies outside the pool: nothing may be read there.
__device__ __forceinline__ bool check_key(const TreeAttentionParams& p, Key& key, int* invalid) {
  if (key.block >= 0 && key.block < p.k_pool.num_blocks) return true;
  *invalid = 1;
  key = {};
  return false;
}

// Key `index` of the context.
__device__ inline Key find_context_key(const TreeAttentionParams& p, const RowTile& tile, int index,
                                       int* invalid) {
  const uint32_t block_size = static_cast<uint32_t>(p.k_pool.block_size);
  const uint32_t block = static_cast<uint32_t>(index) / block_size;
  Key key{.block = p.block_table[tile.request * p.stride_block_table + block],
          .row = static_cast<int>(static_cast<uint32_t>(index) - block * block_size),
          .first = 0,
          .count = INT32_MAX,
          .position = index};
  check_key(p, key, invalid);
  return key;
}

// The key of a node, its place among others left open.
__device__ inline Key find_node_key(const TreeAttentionParams& p, const RowTile& tile, int node,
                                    int* invalid) {
  Key key;
  const bool known = node >= 0 && node < tile.num_nodes;  // else the plan is not of these offsets
  const int64_t slot = known ? p.slot_mapping[tile.begin + node] : -1;
  if (slot >= 0 && slot < int64_t{p.k_pool.num_blocks} * p.k_pool.block_size) {
    key.block = static_cast<int>(slot / p.k_pool.block_size);
    key.row = static_cast<int>(slot % p.k_pool.block_size);
  }
  check_key(p, key, invalid);
  return key;
}

// Key `index` of the row tile; no entry and no slot is read but its own.
__device__ inline Key find_key(const TreeAttentionParams& p, const PlanWork& work,
                               const RowTile& tile, int index, int* invalid) {
  if (index >= tile.num_keys) return {};
  if (index < tile.context_len) return find_context_key(p, tile, index, invalid);
  const int nth = index - tile.context_len;
  const bool is_ancestor = nth < tile.first_depth;
  const int first = is_ancestor ? 0 : tile.first_place + nth - tile.first_depth;
  const int64_t place = tile.begin + (is_ancestor ? tile.first_place : first);
  int node = p.order[place];
  if (is_ancestor && node >= 0 && node < tile.num_nodes) {
    node = ancestor_at(p.ancestors + (tile.begin + int64_t{node}) * p.num_words, p.num_words, nth);
  }
  Key key = find_node_key(p, tile, node, invalid);
  if (key.block < 0) return key;
  key.first = first;
  key.count = work.subtree_ends(p.num_requests)[tile.begin + node] - first;
  key.position = is_ancestor ? index : tile.context_len + p.depths[tile.begin + node];
  return key;
}

// Key `index` of a row by itself: the context, then the path of `row`, the row of the node.
__device__ inline Key find_path_key(const TreeAttentionParams& p, const RowTile& tile, int row,
                                    int index, int* invalid) {
  if (index < tile.context_len) return find_context_key(p, tile, index, invalid);
  const int node =
      ancestor_at(p.ancestors + int64_t{row} * p.num_words, p.num_words, index - tile.context_len);
  return find_node_key(p, tile, node, invalid);
}

__device__ __forceinline__ int64_t kv_offset_of(const KvPool& pool, const Key& key, int kv_head) {
  return key.block * pool.stride_block + key.row * pool.stride_row + kv_head * pool.stride_head;
}

// Threads 0 .. kTileKeys write where K rows lie and who sees them, as many after those V rows.
template <int kTileKeys>
__device__ __forceinline__ void put_key(const TreeAttentionParams& p, const RowTile& tile,
                                        const Key& key, KeyTable<kTileKeys>& table) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= 2 * kTileKeys) return;
  const int column = thread % kTileKeys;
  const KvPool& pool = thread < kTileKeys ? p.k_pool : p.v_pool;
  const int64_t offset = key.block < 0 ? -1 : kv_offset_of(pool, key, tile.kv_head);
  if (thread >= kTileKeys) {
    table.v_offset[column] = offset;
    return;
  }
  table.k_offset[column] = offset;
  table.first[column] = key.first;
  table.count[column] = key.count;
  table.position[column] = key.position;
}

}  // namespace treeattn::cuda
