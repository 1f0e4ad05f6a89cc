// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "micro/common/elements.h"
#include "micro/common/random.h"
#include "treeattn/paged_kv.h"

namespace treeattn::micro {

// The blocks of some requests, in shuffled order: a logical neighbour is rarely a physical one.
struct BlockTables {
  std::vector<int32_t> table;  // [num_requests, max_blocks]
  int max_blocks;
  int num_blocks;  // of the pool; more than the requests own, so that some belong to nobody
  int block_size;

  int64_t slot(int request, int64_t logical) const {
    const int32_t block = table[int64_t{request} * max_blocks + logical / block_size];
    return int64_t{block} * block_size + logical % block_size;
  }
};

inline BlockTables shuffled_blocks(int num_requests, int64_t slots_each, int block_size,
                                   uint64_t seed) {
  const int max_blocks = static_cast<int>((slots_each + block_size - 1) / block_size);
  const int num_blocks = num_requests * max_blocks + 2;
  std::vector<int32_t> blocks(num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  Random random(seed);
  for (int i = num_blocks - 1; i > 0; --i) std::swap(blocks[i], blocks[random.below(i + 1)]);
  blocks.resize(int64_t{num_requests} * max_blocks);
  return {.table = std::move(blocks),
          .max_blocks = max_blocks,
          .num_blocks = num_blocks,
          .block_size = block_size};
}

// One layer's K or V, contiguous: [num_blocks, block_size, num_kv_heads, head_dim].
inline KvPool pool_view(void* data, DType dtype, const BlockTables& blocks, int num_kv_heads,
                        int head_dim) {
  return {.data = data,
          .scale = nullptr,
          .stride_block = int64_t{blocks.block_size} * num_kv_heads * head_dim,
          .stride_row = int64_t{num_kv_heads} * head_dim,
          .stride_head = head_dim,
          .stride_scale = 0,
          .num_blocks = blocks.num_blocks,
          .block_size = blocks.block_size,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .dtype = dtype};
}

class Pool {
 public:
  Pool(DType dtype, const BlockTables& blocks, int num_kv_heads, int head_dim)
      : elements_(dtype, int64_t{blocks.num_blocks} * blocks.block_size * num_kv_heads * head_dim),
        view_(pool_view(elements_.data(), dtype, blocks, num_kv_heads, head_dim)) {}

  const KvPool& view() const { return view_; }
  Elements& elements() { return elements_; }
  const Elements& elements() const { return elements_; }

  int64_t row_size() const { return view_.stride_row; }
  int64_t num_slots() const { return int64_t{view_.num_blocks} * view_.block_size; }

  void fill_row(int64_t slot, Random& random) {
    for (int64_t i = 0; i < row_size(); ++i) elements_.set(slot * row_size() + i, random.normal());
  }

 private:
  Elements elements_;
  KvPool view_;
};

}  // namespace treeattn::micro
