// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "bindings/params.h"

namespace treeattn::bindings {

PlanTreeCall plan_tree_params(const Tensor& parents, const Tensor& node_indptr,
                              const Tensor& context_lens, const Tensor& block_table,
                              const OptTensor& slot_mapping, int64_t block_size,
                              std::optional<int64_t> max_depth, const Tensor& depths,
                              const Tensor& positions, const Tensor& slots, const Tensor& ancestors,
                              const Tensor& order, const Tensor& status, const OptTensor& work) {
  Match match("plan_tree");
  constexpr auto kInt = ScalarType::Int;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const auto packed = [&match](const Tensor& t, const char* name,
                               std::initializer_list<const char*> shape, ScalarType dtype) {
    match(t, name, shape, {dtype});
    match.packed_from(t, name, 0);
  };
  packed(parents, "parents", {"num_nodes"}, kInt);
  packed(node_indptr, "node_indptr", {"num_requests + 1"}, kInt);
  TREEATTN_CHECK(node_indptr.size(0) > 0,
                 "plan_tree: node_indptr must have shape [num_requests + 1], got [0]");
  match.bind("num_requests", node_indptr.size(0) - 1);
  packed(context_lens, "context_lens", {"num_requests"}, kInt);
  match(block_table, "block_table", {"num_requests", "max_blocks"}, {kInt});
  match.packed_from(block_table, "block_table", 1);
  if (slot_mapping) packed(*slot_mapping, "slot_mapping", {"num_nodes"}, ScalarType::Long);
  packed(depths, "depths", {"num_nodes"}, kInt);
  packed(positions, "positions", {"num_nodes"}, kInt);
  packed(slots, "slots", {"num_nodes"}, ScalarType::Long);
  packed(ancestors, "ancestors", {"num_nodes", "num_words"}, kInt);
  packed(order, "order", {"num_nodes"}, kInt);
  packed(status, "status", {"num_requests"}, kInt);
  const Scratch<int32_t> scratch = scratch_of<int32_t>(match, work, "work", ScalarType::Int);
  TREEATTN_CHECK(block_size >= 1 && block_size <= kMax,
                 "plan_tree: block_size must be at least 1, got ", block_size);
  const int64_t depth_limit = max_depth.value_or(0);
  TREEATTN_CHECK(depth_limit >= 0 && depth_limit <= kMax,
                 "plan_tree: max_depth must not be negative, got ", depth_limit);
  return {.params =
              {
                  .parents = const_data<int32_t>(parents),
                  .node_indptr = const_data<int32_t>(node_indptr),
                  .context_lens = const_data<int32_t>(context_lens),
                  .block_table = const_data<int32_t>(block_table),
                  .slots_in = const_data<int64_t>(slot_mapping),
                  .depths = mutable_data<int32_t>(depths),
                  .positions = mutable_data<int32_t>(positions),
                  .slot_mapping = mutable_data<int64_t>(slots),
                  .ancestors = mutable_data<uint32_t>(ancestors),
                  .order = mutable_data<int32_t>(order),
                  .status = mutable_data<int32_t>(status),
                  .stride_block_table = block_table.stride(0),
                  .num_requests = match.size("num_requests"),
                  .num_nodes = match.size("num_nodes"),
                  .num_words = match.size("num_words"),
                  .max_blocks = match.size("max_blocks"),
                  .block_size = static_cast<int>(block_size),
                  .max_depth = max_depth ? static_cast<int>(depth_limit) : -1,
              },
          .work = scratch};
}

}  // namespace treeattn::bindings
