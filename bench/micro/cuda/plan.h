// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/plan_work.h"
#include "cuda/plan_tree/plan_tree.h"
#include "micro/common/paging.h"
#include "micro/common/plan.h"
#include "micro/cuda/mirror.h"

namespace treeattn::micro {

// A plan's inputs on the device, and room for what plan_tree makes of them.
struct DevicePlan {
  PlanTreeParams params;
  cuda::PlanWork work;

  DevicePlan(Mirror& mirror, const Plan& host, const BlockTables& blocks, int num_qo_heads,
             int num_kv_heads)
      : params{.parents = mirror.copy(host.parents),
               .node_indptr = mirror.copy(host.node_indptr),
               .context_lens = mirror.copy(host.context_lens),
               .block_table = mirror.copy(blocks.table),
               .slots_in = nullptr,
               .depths = mirror.room<int32_t>(host.num_nodes),
               .positions = mirror.room<int32_t>(host.num_nodes),
               .slot_mapping = mirror.room<int64_t>(host.num_nodes),
               .ancestors = mirror.room<uint32_t>(int64_t{host.num_nodes} * host.num_words),
               .order = mirror.room<int32_t>(host.num_nodes),
               .status = mirror.room<int32_t>(host.num_requests),
               .stride_block_table = blocks.max_blocks,
               .num_requests = host.num_requests,
               .num_nodes = host.num_nodes,
               .num_words = host.num_words,
               .max_blocks = blocks.max_blocks,
               .block_size = blocks.block_size,
               .max_depth = host.max_depth} {
    work.size = cuda::plan_work_size(host.num_requests, host.num_nodes, num_qo_heads, num_kv_heads);
    work.data = mirror.room<int32_t>(work.size);
  }

  void run() const { cuda::plan_tree(params, work, device_stream()); }
};

}  // namespace treeattn::micro
