// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "micro/common/elements.h"
#include "micro/common/paging.h"
#include "micro/common/plan.h"
#include "micro/common/random.h"
#include "treeattn/tree_attention.h"

namespace treeattn::micro {

struct AttentionShape {
  const char* name;
  int num_qo_heads;
  int num_kv_heads;
  int head_dim;
};

// One layer's pools and queries. Slots that nobody may read are NaN.
struct AttentionBatch {
  AttentionShape shape;
  BlockTables blocks;
  Plan plan;
  Pool k_pool, v_pool;
  Elements q, out;         // [num_nodes, num_qo_heads, head_dim]
  std::vector<float> lse;  // [num_nodes, num_qo_heads]

  AttentionBatch(const AttentionShape& heads, DType dtype, BlockTables tables,
                 const std::vector<Parents>& trees, const std::vector<int32_t>& context_lens,
                 uint64_t seed)
      : shape(heads),
        blocks(std::move(tables)),
        plan(make_plan(trees, context_lens, blocks)),
        k_pool(dtype, blocks, heads.num_kv_heads, heads.head_dim),
        v_pool(dtype, blocks, heads.num_kv_heads, heads.head_dim),
        q(dtype, int64_t{plan.num_nodes} * heads.num_qo_heads * heads.head_dim),
        out(dtype, q.size()),
        lse(int64_t{plan.num_nodes} * heads.num_qo_heads) {
    Random random(seed);
    for (int64_t i = 0; i < q.size(); ++i) q.set(i, random.normal());
    for (Pool* pool : {&k_pool, &v_pool}) {
      pool->elements().poison();
      for (int b = 0; b < plan.num_requests; ++b) {
        for (int64_t i = 0; i < context_lens[b]; ++i) pool->fill_row(blocks.slot(b, i), random);
      }
      for (const int64_t slot : plan.slot_mapping) pool->fill_row(slot, random);
    }
    out.poison();
  }

  // Keys that all nodes see together.
  int64_t visible_keys() const {
    int64_t keys = 0;
    for (int b = 0; b < plan.num_requests; ++b) {
      for (int i = plan.node_indptr[b]; i < plan.node_indptr[b + 1]; ++i) {
        keys += plan.context_lens[b] + plan.depths[i] + 1;
      }
    }
    return keys;
  }

  // Multiplies and adds of the visible scores and of their weighted values.
  double flops() const {
    return 4.0 * shape.head_dim * shape.num_qo_heads * static_cast<double>(visible_keys());
  }

  // Queries, outputs, and each live row of K and V once.
  int64_t num_bytes() const {
    int64_t rows = plan.num_nodes;
    for (const int32_t context_len : plan.context_lens) rows += context_len;
    return 2 * q.num_bytes() + 2 * rows * k_pool.row_size() * element_size(q.dtype());
  }

  TreeAttentionParams params() {
    const int64_t node_size = int64_t{shape.num_qo_heads} * shape.head_dim;
    return {.q = q.data(),
            .out = out.data(),
            .lse = lse.data(),
            .k_pool = k_pool.view(),
            .v_pool = v_pool.view(),
            .node_indptr = plan.node_indptr.data(),
            .context_lens = plan.context_lens.data(),
            .block_table = blocks.table.data(),
            .depths = plan.depths.data(),
            .slot_mapping = plan.slot_mapping.data(),
            .ancestors = plan.ancestors.data(),
            .order = plan.order.data(),
            .status = plan.status.data(),
            .sinks = nullptr,
            .alibi_slopes = nullptr,
            .stride_q_node = node_size,
            .stride_q_head = shape.head_dim,
            .stride_out_node = node_size,
            .stride_out_head = shape.head_dim,
            .stride_block_table = blocks.max_blocks,
            .num_requests = plan.num_requests,
            .num_nodes = plan.num_nodes,
            .num_words = plan.num_words,
            .max_blocks = blocks.max_blocks,
            .num_qo_heads = shape.num_qo_heads,
            .window = 0,
            .sm_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
            .logits_soft_cap = 0.0f,
            .dtype = q.dtype()};
  }
};

}  // namespace treeattn::micro
