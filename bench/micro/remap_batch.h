// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/remap_kv.h"
#include "micro/common/paging.h"
#include "micro/common/plan.h"
#include "micro/common/workers.h"

namespace treeattn::micro {

using Paths = std::vector<std::vector<int32_t>>;  // accepted nodes of each request, root first

// The pools of all layers, a plan, and the paths that were accepted.
struct RemapBatch {
  BlockTables blocks;
  Plan plan;
  std::vector<Pool> pools;  // K and V of each layer
  std::vector<RemapPlane> planes;
  std::vector<int32_t> path, num_accepted, status, moved;
  int path_width;

  RemapBatch(BlockTables tables, const std::vector<Parents>& trees,
             const std::vector<int32_t>& context_lens, const Paths& paths)
      : blocks(std::move(tables)),
        plan(make_plan(trees, context_lens, blocks)),
        status(paths.size(), kOk),
        moved(paths.size()),
        path_width(0) {
    for (const auto& nodes : paths) {
      path_width = std::max(path_width, static_cast<int>(nodes.size()));
    }
    path.assign(paths.size() * path_width, -1);
    for (size_t b = 0; b < paths.size(); ++b) {
      std::copy(paths[b].begin(), paths[b].end(), path.begin() + b * path_width);
      num_accepted.push_back(static_cast<int32_t>(paths[b].size()) - 1);
    }
  }

  void add_pools(int count, DType dtype, int num_kv_heads, int head_dim) {
    for (int i = 0; i < count; ++i) {
      Pool& pool = pools.emplace_back(dtype, blocks, num_kv_heads, head_dim);
      const int64_t bytes = element_size(dtype);
      planes.push_back({.data = static_cast<char*>(pool.view().data),
                        .stride_block = pool.view().stride_block * bytes,
                        .stride_row = pool.view().stride_row * bytes,
                        .stride_head = pool.view().stride_head * bytes,
                        .num_heads = num_kv_heads,
                        .head_bytes = static_cast<int>(head_dim * bytes)});
    }
  }

  // Of one row in all pools.
  int64_t row_bytes() const {
    int64_t bytes = 0;
    for (const RemapPlane& plane : planes) bytes += int64_t{plane.num_heads} * plane.head_bytes;
    return bytes;
  }

  RemapKvParams params() {
    return {.planes = planes.data(),
            .node_indptr = plan.node_indptr.data(),
            .context_lens = plan.context_lens.data(),
            .slot_mapping = plan.slot_mapping.data(),
            .path = path.data(),
            .num_accepted = num_accepted.data(),
            .status = status.data(),
            .block_table = blocks.table.data(),
            .moved = moved.data(),
            .stride_block_table = blocks.max_blocks,
            .stride_path = path_width,
            .num_planes = static_cast<int>(planes.size()),
            .num_requests = plan.num_requests,
            .num_nodes = plan.num_nodes,
            .path_width = path_width,
            .max_blocks = blocks.max_blocks,
            .num_blocks = blocks.num_blocks,
            .block_size = blocks.block_size};
  }
};

// What the op does: checks, lists the moves, and copies in shares of at least 256 KiB.
inline void call_remap_kv(const RemapKvParams& p, int64_t row_bytes, Workers& workers,
                          int threads) {
  constexpr int64_t kShareBytes = int64_t{256} * 1024;
  cpu::check_remap_kv(p);
  const cpu::RemapMoves moves = cpu::plan_moves(p);
  const int64_t num_items = p.num_planes * moves.num_groups();
  const int64_t bytes = row_bytes * static_cast<int64_t>(moves.rows.size());
  if (bytes == 0) return;
  const int64_t share = std::max<int64_t>(1, kShareBytes * num_items / bytes);
  const int64_t num_shares = (num_items + share - 1) / share;
  Items shares(num_shares);
  workers.run(num_shares == 1 ? 1 : threads, [&](int) {
    for (int64_t i = shares.next(); i < num_shares; i = shares.next()) {
      cpu::move_rows(p, moves, i * share, std::min(num_items, (i + 1) * share));
    }
  });
}

}  // namespace treeattn::micro
