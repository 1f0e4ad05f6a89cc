// SPDX-License-Identifier: Apache-2.0
#include "cpu/node_indptr.h"
#include "cpu/tree_attention.h"
#include "treeattn/check.h"
#include "treeattn/plan_tree.h"

namespace treeattn::cpu {
namespace {

void check_table(const TreeAttentionParams& p, int request) {
  const int64_t context_len = p.context_lens[request];
  const int64_t num_blocks = (context_len + p.k_pool.block_size - 1) / p.k_pool.block_size;
  const int num_nodes = p.node_indptr[request + 1] - p.node_indptr[request];
  TREEATTN_CHECK(
      context_len >= 0 && num_blocks <= p.max_blocks && context_len + num_nodes <= kMaxKeys,
      "tree_attention: plan.context_lens[", request, "] must fit the ", p.max_blocks,
      " blocks of its table, got ", context_len);
  const int32_t* const blocks = p.block_table + request * p.stride_block_table;
  for (int64_t i = 0; i < num_blocks; ++i) {
    TREEATTN_CHECK(blocks[i] >= 0 && blocks[i] < p.k_pool.num_blocks,
                   "tree_attention: block_table[", request, "][", i,
                   "] must be a block of the pool (0 to ", p.k_pool.num_blocks - 1, "), got ",
                   blocks[i]);
  }
}

void check_nodes(const TreeAttentionParams& p, int request) {
  const int64_t num_slots = int64_t{p.k_pool.num_blocks} * p.k_pool.block_size;
  const int num_nodes = p.node_indptr[request + 1] - p.node_indptr[request];
  TREEATTN_CHECK(num_nodes <= int64_t{p.num_words} * 32,
                 "tree_attention: plan.ancestors must have a bit per node of the largest tree, ",
                 num_nodes, ", got ", p.num_words, " words");
  for (int i = p.node_indptr[request]; i < p.node_indptr[request + 1]; ++i) {
    TREEATTN_CHECK(p.slot_mapping[i] >= 0 && p.slot_mapping[i] < num_slots,
                   "tree_attention: slot_mapping[", i, "] must be a slot of the pool (0 to ",
                   num_slots - 1, "), got ", p.slot_mapping[i]);
    TREEATTN_CHECK(
        p.order[i] >= 0 && p.order[i] < num_nodes && p.depths[i] >= 0 && p.depths[i] < num_nodes,
        "tree_attention: plan.order and plan.depths of node ", i, " must be below the ", num_nodes,
        " nodes of request ", request, ", got ", p.order[i], " and ", p.depths[i]);
  }
}

}  // namespace

void check_tree_attention(const TreeAttentionParams& p) {
  check_node_indptr("tree_attention", p.node_indptr, p.num_requests, p.num_nodes);
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.status[b] != kOk) continue;
    check_table(p, b);
    check_nodes(p, b);
  }
}

}  // namespace treeattn::cpu
