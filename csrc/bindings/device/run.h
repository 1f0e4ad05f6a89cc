// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings/params.h"
#include "cuda/common/stream.h"

namespace treeattn::bindings {

// Ops whose kernels need scratch memory: its size is checked, then the kernels are queued.
void run_plan_tree(const PlanTreeCall& call, cudaStream_t stream);
void run_tree_attention(const TreeAttentionCall& call, cudaStream_t stream);
void run_accept_path(const AcceptPathCall& call, cudaStream_t stream);
void run_remap_kv(const RemapKvCall& call, cudaStream_t stream);

}  // namespace treeattn::bindings
