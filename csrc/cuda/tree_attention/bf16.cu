// SPDX-License-Identifier: Apache-2.0
#include "cuda/tree_attention/launch.cuh"

namespace treeattn::cuda {

template void launch_attention<AttentionTraits<BFloat16, BFloat16, 64, PlainScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<BFloat16, BFloat16, 128, PlainScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<BFloat16, BFloat16, 64, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<BFloat16, BFloat16, 128, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<BFloat16, BFloat16, 256, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);

}  // namespace treeattn::cuda
