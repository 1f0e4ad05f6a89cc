// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/stream.h"
#include "treeattn/merge_states.h"

namespace treeattn::cuda {

void merge_states(const MergeStatesParams& p, cudaStream_t stream);

}  // namespace treeattn::cuda
