// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/match.h"
#include "treeattn/accept_path.h"
#include "treeattn/merge_states.h"
#include "treeattn/plan_tree.h"
#include "treeattn/remap_kv.h"
#include "treeattn/tree_attention.h"
#include "treeattn/write_kv.h"

// Tensors become checked params: one function per op, in a file of its name, the same for every
// device. What the tensors hold is not looked at: that is for the device they lie on.
namespace treeattn::bindings {

using OptTensor = std::optional<Tensor>;

// Memory that a device's kernels need beside the params; the CPU has its own.
template <class T>
struct Scratch {
  T* data;
  int64_t size;
};

struct PlanTreeCall {
  PlanTreeParams params;
  Scratch<int32_t> work;
};

struct TreeAttentionCall {
  TreeAttentionParams params;
  Scratch<int32_t> work;
  Scratch<float> workspace;
  int num_ctas;
  bool batch_invariant;
};

template <class T>
Scratch<T> scratch_of(Match& match, const OptTensor& t, const char* name, ScalarType dtype) {
  if (!t) return {};
  match(*t, name, {name}, {dtype});
  match.packed_from(*t, name, 0);
  return {mutable_data<T>(*t), t->size(0)};
}

struct AcceptPathCall {
  AcceptPathParams params;
  Scratch<int32_t> workspace;
};

// The planes that `params` points to live here.
struct RemapKvCall {
  std::vector<RemapPlane> planes;
  RemapKvParams params;
  Scratch<int32_t> work;  // of the plan
  int32_t* workspace;     // or nullptr
};

PlanTreeCall plan_tree_params(const Tensor& parents, const Tensor& node_indptr,
                              const Tensor& context_lens, const Tensor& block_table,
                              const OptTensor& slot_mapping, int64_t block_size,
                              std::optional<int64_t> max_depth, const Tensor& depths,
                              const Tensor& positions, const Tensor& slots, const Tensor& ancestors,
                              const Tensor& order, const Tensor& status, const OptTensor& work);

WriteKvParams write_kv_params(const Tensor& k, const Tensor& v, const Tensor& k_cache,
                              const Tensor& v_cache, const Tensor& slot_mapping,
                              const OptTensor& k_scale, const OptTensor& v_scale);

TreeAttentionCall tree_attention_params(
    const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& node_indptr,
    const Tensor& context_lens, const Tensor& block_table, const Tensor& depths,
    const Tensor& slot_mapping, const Tensor& ancestors, const Tensor& order, const Tensor& status,
    int64_t block_size, double sm_scale, std::optional<int64_t> window, double logits_soft_cap,
    const OptTensor& sinks, const OptTensor& alibi_slopes, const OptTensor& k_scale,
    const OptTensor& v_scale, const Tensor& out, const OptTensor& lse, const OptTensor& work,
    const OptTensor& workspace, int64_t num_ctas, bool batch_invariant);

AcceptPathCall accept_path_params(
    const Tensor& logits, const Tensor& tokens, const Tensor& parents, const Tensor& node_indptr,
    const Tensor& context_lens, const Tensor& depths, const Tensor& plan_status, int64_t max_depth,
    int64_t rule, const OptTensor& temperature, const OptTensor& top_k, const OptTensor& top_p,
    const OptTensor& min_p, const OptTensor& seeds, const OptTensor& draft_probs,
    const OptTensor& draft_logits, const OptTensor& draft_rows, const OptTensor& draft_ids,
    bool without_replacement, const OptTensor& allowed, const OptTensor& uniforms,
    double typical_epsilon, double typical_delta, const Tensor& path, const Tensor& num_accepted,
    const Tensor& next_tokens, const Tensor& status, const Tensor& emitted,
    const OptTensor& logprobs, const OptTensor& processed_logprobs, const OptTensor& counts,
    const OptTensor& workspace);

RemapKvCall remap_kv_params(const std::vector<Tensor>& k_caches,
                            const std::vector<Tensor>& v_caches,
                            const std::vector<Tensor>& k_scales,
                            const std::vector<Tensor>& v_scales, const Tensor& node_indptr,
                            const Tensor& context_lens, const Tensor& block_table,
                            const Tensor& slot_mapping, const Tensor& path,
                            const Tensor& num_accepted, const Tensor& status, int64_t block_size,
                            const Tensor& moved, const OptTensor& work, const OptTensor& workspace);

MergeStatesParams merge_states_params(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                                      const Tensor& lse_b, const Tensor& out, const Tensor& lse);

}  // namespace treeattn::bindings
