// SPDX-License-Identifier: Apache-2.0
#include "bindings/device/run.h"

#include "cuda/accept_path/accept_path.h"
#include "cuda/plan_tree/plan_tree.h"
#include "cuda/remap_kv/remap_kv.h"
#include "cuda/tree_attention/tree_attention.h"
#include "treeattn/check.h"

namespace treeattn::bindings {

void run_plan_tree(const PlanTreeCall& call, cudaStream_t stream) {
  const PlanTreeParams& p = call.params;
  const int64_t least = int64_t{cuda::kRemapHeaderSize} + p.num_requests + p.num_nodes;
  TREEATTN_CHECK(call.work.size >= least, "plan_tree: work must have at least ", least,
                 " elements on this device, got ", call.work.size);
  cuda::plan_tree(p, {.data = call.work.data, .size = call.work.size}, stream);
}

void run_tree_attention(const TreeAttentionCall& call, cudaStream_t stream) {
  const TreeAttentionParams& p = call.params;
  const int64_t work_size =
      cuda::plan_work_size(p.num_requests, p.num_nodes, p.num_qo_heads, p.k_pool.num_kv_heads);
  TREEATTN_CHECK(call.work.size >= work_size, "tree_attention: plan.work must have at least ",
                 work_size, " elements on this device, got ", call.work.size);
  const int64_t states_size = cuda::attention_states_size(p, call.batch_invariant, call.num_ctas);
  TREEATTN_CHECK(call.workspace.size >= states_size,
                 "tree_attention: workspace must have at least ", states_size,
                 " elements on this device, got ", call.workspace.size);
  cuda::tree_attention(p,
                       {.plan = {.data = call.work.data, .size = call.work.size},
                        .states = call.workspace.data,
                        .num_ctas = call.num_ctas,
                        .batch_invariant = call.batch_invariant},
                       stream);
}

void run_accept_path(const AcceptPathCall& call, cudaStream_t stream) {
  const AcceptPathParams& p = call.params;
  const bool is_optional = !takes_trials(p.rule);
  const int64_t least = cuda::accept_path_workspace_size(p);
  TREEATTN_CHECK((is_optional && call.workspace.data == nullptr) || call.workspace.size >= least,
                 "accept_path: workspace must have at least ", least,
                 " elements on this device, got ", call.workspace.size);
  cuda::accept_path(p, call.workspace.data, stream);
}

void run_remap_kv(const RemapKvCall& call, cudaStream_t stream) {
  TREEATTN_CHECK(call.workspace != nullptr, "remap_kv: workspace must be given, got None");
  TREEATTN_CHECK(call.work.size >= cuda::kRemapHeaderSize, "remap_kv: work must have at least ",
                 cuda::kRemapHeaderSize, " elements on this device, got ", call.work.size);
  const cuda::PlanWork work{.data = call.work.data, .size = call.work.size};
  cuda::remap_kv(call.params, call.workspace, work.remap_header(), stream);
}

}  // namespace treeattn::bindings
