// SPDX-License-Identifier: Apache-2.0
#include "bindings/schemas.h"

namespace treeattn::bindings {

void define_ops(Library& m) {
  // Once per step: everything about the batch that follows from `parents`.
  m.def(
      "plan_tree(Tensor parents, Tensor node_indptr, Tensor context_lens, Tensor block_table, "
      "Tensor? slot_mapping, int block_size, int? max_depth, Tensor(a!) depths, "
      "Tensor(b!) positions, Tensor(c!) slots, Tensor(d!) ancestors, Tensor(e!) order, "
      "Tensor(f!) status, Tensor(g!)? work) -> ()");
  // Per layer: store the nodes' keys and values, then attend to the prefix and the ancestors.
  m.def(
      "write_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, "
      "Tensor? k_scale, Tensor? v_scale) -> ()");
  m.def(
      "tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor node_indptr, "
      "Tensor context_lens, Tensor block_table, Tensor depths, Tensor slot_mapping, "
      "Tensor ancestors, Tensor order, Tensor status, int block_size, float sm_scale, "
      "int? window, float logits_soft_cap, Tensor? sinks, Tensor? alibi_slopes, Tensor? k_scale, "
      "Tensor? v_scale, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? work, Tensor(d!)? workspace, "
      "int num_ctas, bool batch_invariant) -> ()");
  // Once per step: choose the path (rule: AcceptRule; workspace: accept_path_workspace_size int32
  // of any content for devices, which for rules greedy and target read the rows one after the other
  // without it), then bring its keys and values into place in all layers.
  m.def(
      "accept_path(Tensor logits, Tensor tokens, "
      "Tensor parents, Tensor node_indptr, Tensor context_lens, Tensor depths, Tensor plan_status, "
      "int max_depth, int rule, "
      "Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? seeds, "
      "Tensor? draft_probs, Tensor? draft_logits, Tensor? draft_rows, Tensor? draft_ids, "
      "bool without_replacement, Tensor? allowed, Tensor? uniforms, "
      "float typical_epsilon, float typical_delta, "
      "Tensor(a!) path, Tensor(b!) num_accepted, Tensor(c!) next_tokens, Tensor(d!) status, "
      "Tensor(e!) emitted, Tensor(f!)? logprobs, Tensor(g!)? processed_logprobs, "
      "Tensor(h!)? counts, Tensor(i!)? workspace) -> ()");
  m.def(
      "remap_kv(Tensor(a!)[] k_caches, Tensor(b!)[] v_caches, Tensor(c!)[] k_scales, "
      "Tensor(d!)[] v_scales, Tensor node_indptr, Tensor context_lens, Tensor(e!) block_table, "
      "Tensor slot_mapping, Tensor path, Tensor num_accepted, Tensor(f!) status, int block_size, "
      "Tensor(g!) moved, Tensor(h!)? work, Tensor(i!)? workspace) -> ()");
  // Combine two attention results over disjoint key sets.
  m.def(
      "merge_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b, Tensor(a!) out, "
      "Tensor(b!) lse) -> ()");
}

}  // namespace treeattn::bindings
