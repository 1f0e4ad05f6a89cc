// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/plan_tree.h"
#include "micro/common/paging.h"
#include "micro/common/trees.h"

namespace treeattn::micro {

// A batch of trees and what plan_tree makes of it.
struct Plan {
  std::vector<int32_t> parents, node_indptr, context_lens;
  std::vector<int32_t> depths, positions, order, status;
  std::vector<int64_t> slot_mapping;
  std::vector<uint32_t> ancestors;
  int num_requests, num_nodes, num_words, max_depth;
};

inline Plan make_plan(const std::vector<Parents>& trees, const std::vector<int32_t>& context_lens,
                      const BlockTables& blocks) {
  Plan plan{};
  plan.context_lens = context_lens;
  plan.node_indptr = {0};
  for (const Parents& tree : trees) {
    plan.parents.insert(plan.parents.end(), tree.begin(), tree.end());
    plan.node_indptr.push_back(static_cast<int32_t>(plan.parents.size()));
    plan.num_words = std::max(plan.num_words, static_cast<int>((tree.size() + 31) / 32));
  }
  plan.num_requests = static_cast<int>(trees.size());
  plan.num_nodes = plan.node_indptr.back();
  plan.depths.resize(plan.num_nodes);
  plan.positions.resize(plan.num_nodes);
  plan.order.resize(plan.num_nodes);
  plan.slot_mapping.resize(plan.num_nodes);
  plan.ancestors.resize(int64_t{plan.num_nodes} * plan.num_words);
  plan.status.resize(plan.num_requests);
  const PlanTreeParams params{.parents = plan.parents.data(),
                              .node_indptr = plan.node_indptr.data(),
                              .context_lens = plan.context_lens.data(),
                              .block_table = blocks.table.data(),
                              .slots_in = nullptr,
                              .depths = plan.depths.data(),
                              .positions = plan.positions.data(),
                              .slot_mapping = plan.slot_mapping.data(),
                              .ancestors = plan.ancestors.data(),
                              .order = plan.order.data(),
                              .status = plan.status.data(),
                              .stride_block_table = blocks.max_blocks,
                              .num_requests = plan.num_requests,
                              .num_nodes = plan.num_nodes,
                              .num_words = plan.num_words,
                              .max_blocks = blocks.max_blocks,
                              .block_size = blocks.block_size,
                              .max_depth = -1};
  cpu::check_plan_tree(params);
  cpu::plan_tree(params, 0, plan.num_requests);
  plan.max_depth = *std::max_element(plan.depths.begin(), plan.depths.end());
  return plan;
}

}  // namespace treeattn::micro
