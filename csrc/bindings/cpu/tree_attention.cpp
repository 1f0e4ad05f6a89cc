// SPDX-License-Identifier: Apache-2.0
#include "cpu/tree_attention.h"

#include <new>

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"
#include "cpu/node_indptr.h"
#include "treeattn/plan_tree.h"

namespace treeattn::bindings {
namespace {

// Uninitialised floats that start on a cache line, so that no vector straddles two.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t count)
      : memory_(static_cast<float*>(::operator new(sizeof(float) * count, kCacheLine))) {}
  ~AlignedFloats() { ::operator delete(memory_, kCacheLine); }
  AlignedFloats(const AlignedFloats&) = delete;
  AlignedFloats& operator=(const AlignedFloats&) = delete;
  float* get() const { return memory_; }

 private:
  static constexpr std::align_val_t kCacheLine{64};
  float* memory_;
};

// What the plan could not know: that the blocks and slots exist in this pool. The plan aliases the
// caller's lengths and offsets, so what bounds a read here is checked again.
void check_slots(const TreeAttentionParams& p) {
  const int64_t num_slots = int64_t{p.k_pool.num_blocks} * p.k_pool.block_size;
  cpu::check_node_indptr("tree_attention", p.node_indptr, p.num_requests, p.num_nodes);
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.status[b] != 0) continue;
    const int64_t num_blocks =
        (int64_t{p.context_lens[b]} + p.k_pool.block_size - 1) / p.k_pool.block_size;
    const int num_nodes = p.node_indptr[b + 1] - p.node_indptr[b];
    TREEATTN_CHECK(num_nodes <= int64_t{p.num_words} * 32,
                   "tree_attention: plan.ancestors must have a bit per node of the largest tree, ",
                   num_nodes, ", got ", p.num_words, " words");
    TREEATTN_CHECK(p.context_lens[b] >= 0 && num_blocks <= p.max_blocks &&
                       int64_t{p.context_lens[b]} + num_nodes <= kMaxKeys,
                   "tree_attention: plan.context_lens[", b, "] must fit the ", p.max_blocks,
                   " blocks of its table, got ", p.context_lens[b]);
    const int32_t* blocks = p.block_table + b * p.stride_block_table;
    for (int64_t i = 0; i < num_blocks; ++i) {
      TREEATTN_CHECK(blocks[i] >= 0 && blocks[i] < p.k_pool.num_blocks,
                     "tree_attention: block_table[", b, "][", i,
                     "] must be a block of the pool (0 to ", p.k_pool.num_blocks - 1, "), got ",
                     blocks[i]);
    }
    for (int i = p.node_indptr[b]; i < p.node_indptr[b + 1]; ++i) {
      TREEATTN_CHECK(p.slot_mapping[i] >= 0 && p.slot_mapping[i] < num_slots,
                     "tree_attention: slot_mapping[", i, "] must be a slot of the pool (0 to ",
                     num_slots - 1, "), got ", p.slot_mapping[i]);
      TREEATTN_CHECK(
          p.order[i] >= 0 && p.order[i] < num_nodes && p.depths[i] >= 0 && p.depths[i] < num_nodes,
          "tree_attention: plan.order and plan.depths of node ", i, " must be below the ",
          num_nodes, " nodes of request ", b, ", got ", p.order[i], " and ", p.depths[i]);
    }
  }
}

}  // namespace

void run_on_cpu(const TreeAttentionCall& call) {
  const TreeAttentionParams& p = call.params;
  check_slots(p);

  cpu::AttentionSchedule schedule(p, torch::stable::get_num_threads());
  const AlignedFloats states(schedule.states_size());
  parallel_items(schedule.num_units(), [&](const auto& next) {
    const AlignedFloats scratch(schedule.scratch_size());
    for (int64_t unit = next(); unit < schedule.num_units(); unit = next()) {
      schedule.run(unit, scratch.get(), states.get());
    }
  });
  cpu::clear_unowned_rows(p);
}

}  // namespace treeattn::bindings
