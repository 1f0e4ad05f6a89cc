// SPDX-License-Identifier: Apache-2.0
#include "cuda/tree_attention/launch.cuh"

namespace treeattn::cuda {

template void launch_attention<AttentionTraits<BFloat16, Float8E4M3, 64, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<BFloat16, Float8E4M3, 128, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<BFloat16, Float8E4M3, 256, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);

}  // namespace treeattn::cuda
