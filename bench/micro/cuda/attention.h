// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/tree_attention/tree_attention.h"
#include "micro/attention_batch.h"
#include "micro/cuda/plan.h"

namespace treeattn::micro {

// Addresses on the device of what one call reads and writes.
struct DeviceTensors {
  void *q, *out;  // [num_nodes, num_qo_heads, head_dim]
  float* lse;     // or nullptr
  void *k, *v;    // pools
};

inline TreeAttentionParams attention_params(const AttentionShape& shape, DType dtype,
                                            const DevicePlan& plan, const BlockTables& blocks,
                                            const DeviceTensors& x) {
  const int64_t node_size = int64_t{shape.num_qo_heads} * shape.head_dim;
  return {.q = x.q,
          .out = x.out,
          .lse = x.lse,
          .k_pool = pool_view(x.k, dtype, blocks, shape.num_kv_heads, shape.head_dim),
          .v_pool = pool_view(x.v, dtype, blocks, shape.num_kv_heads, shape.head_dim),
          .node_indptr = plan.params.node_indptr,
          .context_lens = plan.params.context_lens,
          .block_table = plan.params.block_table,
          .depths = plan.params.depths,
          .slot_mapping = plan.params.slot_mapping,
          .ancestors = plan.params.ancestors,
          .order = plan.params.order,
          .status = plan.params.status,
          .sinks = nullptr,
          .alibi_slopes = nullptr,
          .stride_q_node = node_size,
          .stride_q_head = shape.head_dim,
          .stride_out_node = node_size,
          .stride_out_head = shape.head_dim,
          .stride_block_table = blocks.max_blocks,
          .num_requests = plan.params.num_requests,
          .num_nodes = plan.params.num_nodes,
          .num_words = plan.params.num_words,
          .max_blocks = blocks.max_blocks,
          .num_qo_heads = shape.num_qo_heads,
          .window = 0,
          .sm_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
          .logits_soft_cap = 0.0f,
          .dtype = dtype};
}

// Room for a call's partial results; calls in one stream may share it.
inline cuda::AttentionWorkspace attention_workspace(Mirror& mirror, const DevicePlan& plan,
                                                    const TreeAttentionParams& params,
                                                    bool batch_invariant = false) {
  const int num_ctas = cuda::attention_ctas_per_sm(params.k_pool.head_dim) * device().num_sms;
  const int64_t size = cuda::attention_states_size(params, batch_invariant, num_ctas);
  return {.plan = plan.work,
          .states = mirror.room<float>(size),
          .num_ctas = num_ctas,
          .batch_invariant = batch_invariant};
}

}  // namespace treeattn::micro
