// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "bindings/params.h"

namespace treeattn::bindings {

TreeAttentionCall tree_attention_params(
    const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& node_indptr,
    const Tensor& context_lens, const Tensor& block_table, const Tensor& depths,
    const Tensor& slot_mapping, const Tensor& ancestors, const Tensor& order, const Tensor& status,
    int64_t block_size, double sm_scale, std::optional<int64_t> window, double logits_soft_cap,
    const OptTensor& sinks, const OptTensor& alibi_slopes, const OptTensor& k_scale,
    const OptTensor& v_scale, const Tensor& out, const OptTensor& lse, const OptTensor& work,
    const OptTensor& workspace, int64_t num_ctas, bool batch_invariant) {
  constexpr const char* kOp = "tree_attention";
  Match match(kOp);
  match(q, "q", {"num_nodes", "num_qo_heads", "head_dim"}, kFloatTypes);
  match.packed_from(q, "q", 2);
  match.bind("block_size", block_size);
  const KvPool k_pool = kv_pool(match, k_cache, "k_cache", k_scale, "k_scale");
  const KvPool v_pool = kv_pool(match, v_cache, "v_cache", v_scale, "v_scale");
  TREEATTN_CHECK(k_pool.dtype == DType::kFloat8E4M3 || k_pool.dtype == to_dtype(q.scalar_type()),
                 kOp, ": q must have k_cache's dtype, ", dtype_name(k_cache.scalar_type()),
                 ", unless the pool is float8_e4m3fn; got ", dtype_name(q.scalar_type()));
  TREEATTN_CHECK(k_pool.dtype == v_pool.dtype, kOp, ": v_cache must have k_cache's dtype, ",
                 dtype_name(k_cache.scalar_type()), ", got ", dtype_name(v_cache.scalar_type()));
  TREEATTN_CHECK(match["num_kv_heads"] > 0 && match["num_qo_heads"] > 0 &&
                     match["num_qo_heads"] % match["num_kv_heads"] == 0,
                 kOp,
                 ": q's num_qo_heads must be a positive multiple of k_cache's num_kv_heads, got ",
                 match["num_qo_heads"], " and ", match["num_kv_heads"]);
  TREEATTN_CHECK(!window || *window > 0, kOp, ": window must be positive, got ",
                 window.value_or(0));
  TREEATTN_CHECK(logits_soft_cap >= 0 && std::isfinite(logits_soft_cap), kOp,
                 ": logits_soft_cap must be finite and >= 0, got ", logits_soft_cap);
  TREEATTN_CHECK(sm_scale == sm_scale, kOp, ": sm_scale must be a number, got ", sm_scale);
  match(out, "out", {"num_nodes", "num_qo_heads", "head_dim"}, {q.scalar_type()});
  match.packed_from(out, "out", 2);
  match.bind("num_requests", context_lens.size(0));
  match.bind("num_requests + 1", context_lens.size(0) + 1);
  match(node_indptr, "plan.node_indptr", {"num_requests + 1"}, {ScalarType::Int});
  match.packed_from(node_indptr, "plan.node_indptr", 0);
  match(context_lens, "plan.context_lens", {"num_requests"}, {ScalarType::Int});
  match.packed_from(context_lens, "plan.context_lens", 0);
  match(block_table, "plan.block_table", {"num_requests", "max_blocks"}, {ScalarType::Int});
  match.packed_from(block_table, "plan.block_table", 1);
  match(depths, "plan.depths", {"num_nodes"}, {ScalarType::Int});
  match.packed_from(depths, "plan.depths", 0);
  match(slot_mapping, "plan.slot_mapping", {"num_nodes"}, {ScalarType::Long});
  match.packed_from(slot_mapping, "plan.slot_mapping", 0);
  match(ancestors, "plan.ancestors", {"num_nodes", "num_words"}, {ScalarType::Int});
  match.packed_from(ancestors, "plan.ancestors", 0);
  match(order, "plan.order", {"num_nodes"}, {ScalarType::Int});
  match.packed_from(order, "plan.order", 0);
  match(status, "plan.status", {"num_requests"}, {ScalarType::Int});
  match.packed_from(status, "plan.status", 0);
  if (sinks) {
    match(*sinks, "sinks", {"num_qo_heads"}, {ScalarType::Float});
    match.packed_from(*sinks, "sinks", 0);
  }
  if (alibi_slopes) {
    match(*alibi_slopes, "alibi_slopes", {"num_qo_heads"}, {ScalarType::Float});
    match.packed_from(*alibi_slopes, "alibi_slopes", 0);
  }
  if (lse) {
    match(*lse, "lse", {"num_nodes", "num_qo_heads"}, {ScalarType::Float});
    match.packed_from(*lse, "lse", 0);
  }

  TREEATTN_CHECK(num_ctas > 0 && num_ctas <= INT32_MAX, kOp, ": num_ctas must be positive, got ",
                 num_ctas);
  return {.params =
              {
                  .q = q.const_data_ptr(),
                  .out = out.mutable_data_ptr(),
                  .lse = lse ? mutable_data<float>(*lse) : nullptr,
                  .k_pool = k_pool,
                  .v_pool = v_pool,
                  .node_indptr = const_data<int32_t>(node_indptr),
                  .context_lens = const_data<int32_t>(context_lens),
                  .block_table = const_data<int32_t>(block_table),
                  .depths = const_data<int32_t>(depths),
                  .slot_mapping = const_data<int64_t>(slot_mapping),
                  .ancestors = const_data<uint32_t>(ancestors),
                  .order = const_data<int32_t>(order),
                  .status = const_data<int32_t>(status),
                  .sinks = const_data<float>(sinks),
                  .alibi_slopes = const_data<float>(alibi_slopes),
                  .stride_q_node = q.stride(0),
                  .stride_q_head = q.stride(1),
                  .stride_out_node = out.stride(0),
                  .stride_out_head = out.stride(1),
                  .stride_block_table = block_table.stride(0),
                  .num_requests = match.size("num_requests"),
                  .num_nodes = match.size("num_nodes"),
                  .num_words = match.size("num_words"),
                  .max_blocks = match.size("max_blocks"),
                  .num_qo_heads = match.size("num_qo_heads"),
                  .window = static_cast<int>(std::min<int64_t>(window.value_or(0), INT32_MAX)),
                  .sm_scale = static_cast<float>(sm_scale),
                  .logits_soft_cap = static_cast<float>(logits_soft_cap),
                  .dtype = to_dtype(q.scalar_type()),
              },
          .work = scratch_of<int32_t>(match, work, "work", ScalarType::Int),
          .workspace = scratch_of<float>(match, workspace, "workspace", ScalarType::Float),
          .num_ctas = static_cast<int>(num_ctas),
          .batch_invariant = batch_invariant};
}

}  // namespace treeattn::bindings
