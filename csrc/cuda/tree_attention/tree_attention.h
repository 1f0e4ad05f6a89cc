// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/plan_work.h"
#include "cuda/common/stream.h"
#include "treeattn/tree_attention.h"

namespace treeattn::cuda {

struct AttentionWorkspace {
  PlanWork plan;
  float* states;  // partial results of row tiles whose keys are split
  int num_ctas;   // that share the work; as many as run at once are good
  bool batch_invariant;
};

// Tensor-core CTAs that fit a multiprocessor at once (docs/kernel_resources.md).
constexpr int attention_ctas_per_sm(int head_dim) { return head_dim <= 64 ? 3 : 2; }

// Floats that `states` must have. Batch invariant, there is a state for every part that any
// request's keys may be split into.
int64_t attention_states_size(const TreeAttentionParams& p, bool batch_invariant, int num_ctas);

// Queues the attention of one layer. Reads `status` of the plan; a request whose slots or table
// turn out to lie outside the pool gets 0 and -inf like one that the plan refused.
void tree_attention(const TreeAttentionParams& p, const AttentionWorkspace& workspace,
                    cudaStream_t stream);

}  // namespace treeattn::cuda
