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

// Key `index` of the row tile; no entry and no slot is read but its own. *invalid is set when it
// lies outside the pool: then nothing may be read there.
__device__ inline Key find_key(const TreeAttentionParams& p, const PlanWork& work,
                               const RowTile& tile, int index, int* invalid) {
  Key key;
  if (index >= tile.num_keys) return key;
  if (index < tile.context_len) {
    const uint32_t block_size = static_cast<uint32_t>(p.k_pool.block_size);
    const uint32_t block = static_cast<uint32_t>(index) / block_size;
    key.block = p.block_table[tile.request * p.stride_block_table + block];
    key.row = static_cast<int>(static_cast<uint32_t>(index) - block * block_size);
    key.count = INT32_MAX;
    key.position = index;
  } else {
    const int nth = index - tile.context_len;
    const int32_t* order = p.order + tile.begin;
    int node;
    if (nth < tile.first_depth) {
      const int64_t row = tile.begin + order[tile.first_place];
      node = ancestor_at(p.ancestors + row * p.num_words, p.num_words, nth);
      key.position = index;
    } else {
      key.first = tile.first_place + nth - tile.first_depth;
      node = order[key.first];
    }
    if (node < 0 || node >= tile.num_nodes) {  // a plan that is not of these offsets
      *invalid = 1;
      return {};
    }
    if (nth >= tile.first_depth) key.position = tile.context_len + p.depths[tile.begin + node];
    key.count = work.subtree_ends(p.num_requests)[tile.begin + node] - key.first;
    const int64_t slot = p.slot_mapping[tile.begin + node];
    const bool inside = slot >= 0 && slot < int64_t{p.k_pool.num_blocks} * p.k_pool.block_size;
    key.block = inside ? static_cast<int>(slot / p.k_pool.block_size) : -1;
    key.row = inside ? static_cast<int>(slot % p.k_pool.block_size) : 0;
  }
  if (key.block < 0 || key.block >= p.k_pool.num_blocks) {
    *invalid = 1;
    return {};
  }
  return key;
}

// Threads 0 .. kTileKeys write where K rows lie and who sees them, as many after those V rows.
template <int kTileKeys>
__device__ __forceinline__ void put_key(const TreeAttentionParams& p, const RowTile& tile,
                                        const Key& key, KeyTable<kTileKeys>& table) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= 2 * kTileKeys) return;
  const int column = thread % kTileKeys;
  const KvPool& pool = thread < kTileKeys ? p.k_pool : p.v_pool;
  const int64_t offset = key.block < 0 ? -1
                                       : key.block * pool.stride_block + key.row * pool.stride_row +
                                             tile.kv_head * pool.stride_head;
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
