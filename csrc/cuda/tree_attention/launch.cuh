// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/launch.h"
#include "cuda/tree_attention/kernel.cuh"

namespace treeattn::cuda {

template <class Traits>
void launch_attention(const TreeAttentionParams& p, const AttentionLaunch& l, int num_ctas,
                      cudaStream_t stream) {
  static_assert(sizeof(AttentionShared<Traits>) <= Traits::kMostSharedBytes);
  launch(tree_attention_kernel<Traits>, num_ctas, Traits::kNumThreads,
         sizeof(AttentionShared<Traits>), stream, p, l);
}

}  // namespace treeattn::cuda
