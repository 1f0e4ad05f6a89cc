// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/plan_work.h"
#include "cuda/common/stream.h"
#include "treeattn/plan_tree.h"

namespace treeattn::cuda {

// Queues the plan. What CPU tensors are refused for becomes status kInvalid of the request; of
// that only what needs all requests at once (two nodes with one slot, a node in committed rows) is
// not looked for. Rows past the last request are 0, their slot -1.
void plan_tree(const PlanTreeParams& p, const PlanWork& work, cudaStream_t stream);

}  // namespace treeattn::cuda
