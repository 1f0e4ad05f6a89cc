// SPDX-License-Identifier: Apache-2.0
// remap_kv against a scalar loop over all slots of all pools.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "micro/common/check.h"
#include "micro/common/random.h"
#include "micro/common/trees.h"
#include "micro/remap_batch.h"

namespace treeattn::micro {

enum class PathKind {
  kScattered,
  kInPlace,      // the first nodes: nothing moves
  kWholeBlock,   // one block of nodes, aligned: the table is re-pointed
  kCustomSlots,  // scattered, and the nodes' slots are not the default ones
};

inline std::string path_kind_name(PathKind kind) {
  constexpr const char* kNames[] = {"scattered", "in-place", "whole-block", "custom-slots"};
  return kNames[static_cast<int>(kind)];
}

inline std::vector<int32_t> make_path(PathKind kind, int num_nodes, int context_len, int block_size,
                                      Random& random) {
  std::vector<int32_t> path{0};
  if (kind == PathKind::kInPlace) {
    for (int i = 1; i < 6; ++i) path.push_back(i);
  } else if (kind == PathKind::kWholeBlock) {
    const int to_boundary = block_size - context_len % block_size;
    for (int i = 1; i < to_boundary; ++i) path.push_back(i);
    for (int i = 0; i < block_size; ++i) path.push_back(to_boundary + block_size + i);
  } else {
    for (int i = 1; i < num_nodes; ++i) {
      if (random.uniform() < 0.3) path.push_back(i);
    }
  }
  return path;
}

// Every element of every pool: the path's rows where the table now says, all others as they were.
inline void compare_pools(Check& check, const RemapBatch& batch,
                          const std::vector<std::vector<double>>& before, const std::string& name) {
  std::vector<int64_t> source(batch.pools[0].num_slots());  // slot -> slot its row comes from
  for (size_t slot = 0; slot < source.size(); ++slot) source[slot] = static_cast<int64_t>(slot);
  for (int b = 0; b < batch.plan.num_requests; ++b) {
    int moved = 0;
    for (int k = 0; k <= batch.num_accepted[b]; ++k) {
      const int node = batch.plan.node_indptr[b] + batch.path[b * batch.path_width + k];
      const int64_t from = batch.plan.slot_mapping[node];
      const int64_t to = batch.blocks.slot(b, batch.plan.context_lens[b] + k);
      moved += from != to;
      source[to] = from;
    }
    check.equal(batch.moved[b], moved, [&] { return name + " moved[" + std::to_string(b) + "]"; });
  }
  for (size_t plane = 0; plane < batch.pools.size(); ++plane) {
    const Pool& pool = batch.pools[plane];
    for (int64_t slot = 0; slot < pool.num_slots(); ++slot) {
      for (int64_t i = 0; i < pool.row_size(); ++i) {
        const double actual = pool.elements().get(slot * pool.row_size() + i);
        const double expected = before[plane][source[slot] * pool.row_size() + i];
        check.equal(actual, expected, [&] {
          return name + " plane " + std::to_string(plane) + " slot " + std::to_string(slot) +
                 " element " + std::to_string(i);
        });
      }
    }
  }
}

// The same blocks as before, those of the context untouched.
inline void compare_tables(Check& check, const RemapBatch& batch, const BlockTables& before,
                           bool repointed, const std::string& name) {
  for (int b = 0; b < batch.plan.num_requests; ++b) {
    const int64_t begin = int64_t{b} * before.max_blocks;
    const auto row = [&](const BlockTables& blocks) {
      return std::vector<int32_t>(blocks.table.begin() + begin,
                                  blocks.table.begin() + begin + before.max_blocks);
    };
    std::vector<int32_t> now = row(batch.blocks), then = row(before);
    const auto where = [&] { return name + " block table " + std::to_string(b); };
    check.equal(now != then, repointed, where);
    for (int j = 0; j < batch.plan.context_lens[b] / before.block_size; ++j) {
      check.equal(now[j], then[j], where);
    }
    std::sort(now.begin(), now.end());
    std::sort(then.begin(), then.end());
    check.equal(now == then, true, where);
  }
}

// Three requests over layers of two shapes, every slot filled. The same arguments make the same
// batch.
inline RemapBatch remap_check_batch(PathKind kind, int block_size, DType dtype) {
  constexpr int kNodes = 48;
  const std::vector<int32_t> context_lens{5, 32, 0};
  Random random(block_size + 100 * static_cast<int>(kind));
  std::vector<Parents> trees;
  Paths paths;
  for (const int context_len : context_lens) {
    trees.push_back(deep_tree(kNodes, 8, random.bits()));
    paths.push_back(make_path(kind, kNodes, context_len, block_size, random));
  }
  RemapBatch batch(shuffled_blocks(3, 32 + kNodes, block_size, random.bits()), trees, context_lens,
                   paths);
  batch.add_pools(4, dtype, 3, 8);
  batch.add_pools(2, dtype, 1, 20);  // a layer of another shape
  if (kind == PathKind::kCustomSlots) {
    std::vector<int64_t>& slots = batch.plan.slot_mapping;
    for (size_t i = slots.size() - 1; i > 0; --i) {
      std::swap(slots[i], slots[random.below(static_cast<int>(i) + 1)]);
    }
  }
  for (Pool& pool : batch.pools) {
    for (int64_t slot = 0; slot < pool.num_slots(); ++slot) pool.fill_row(slot, random);
  }
  return batch;
}

inline void check_remap_case(Check& check, Workers& workers, PathKind kind, int block_size,
                             DType dtype, int threads, const std::string& name) {
  RemapBatch batch = remap_check_batch(kind, block_size, dtype);
  std::vector<std::vector<double>> before;
  for (const Pool& pool : batch.pools) {
    std::vector<double>& values = before.emplace_back();
    for (int64_t i = 0; i < pool.elements().size(); ++i) values.push_back(pool.elements().get(i));
  }
  const BlockTables tables = batch.blocks;
  call_remap_kv(batch.params(), batch.row_bytes(), workers, threads);
  compare_pools(check, batch, before, name);
  // With one row per block every row that has to move is a whole block.
  const bool repointed =
      kind == PathKind::kWholeBlock || (kind == PathKind::kScattered && block_size == 1);
  if (kind != PathKind::kCustomSlots) compare_tables(check, batch, tables, repointed, name);
  check.end_case();
}

inline void check_remap(Check& check) {
  Workers workers;
  for (const PathKind kind :
       {PathKind::kScattered, PathKind::kInPlace, PathKind::kWholeBlock, PathKind::kCustomSlots}) {
    for (const int block_size : {1, 4, 16}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const int threads : {1, 2}) {
          check_remap_case(check, workers, kind, block_size, dtype, threads,
                           path_kind_name(kind) + " block_size " + std::to_string(block_size) +
                               " " + dtype_name(dtype) + " threads " + std::to_string(threads));
        }
      }
    }
  }
}

}  // namespace treeattn::micro
