// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/plan_work.h"
#include "cuda/common/stream.h"
#include "treeattn/tree_attention.h"

namespace treeattn::cuda {

struct AttentionWorkspace {
  PlanWork plan;
  float* states;        // partial results of row tiles whose keys are split
  int64_t states_size;  // floats; decides how many CTAs share the work
  bool batch_invariant;
};

// Floats of workspace for `num_ctas` CTAs (two per multiprocessor are good), or, batch invariant,
// for every part that a request's keys may be split into.
int64_t attention_states_size(const TreeAttentionParams& p, bool batch_invariant, int num_ctas);

// Queues the attention of one layer. Reads `status` of the plan; a request whose slots or table
// turn out to lie outside the pool gets 0 and -inf like one that the plan refused.
void tree_attention(const TreeAttentionParams& p, const AttentionWorkspace& workspace,
                    cudaStream_t stream);

}  // namespace treeattn::cuda
