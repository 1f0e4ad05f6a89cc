// SPDX-License-Identifier: Apache-2.0
#include "cuda/tree_attention/launch.cuh"

namespace treeattn::cuda {

template void launch_attention<AttentionTraits<Half, Half, 64, PlainScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<Half, Half, 128, PlainScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<Half, Half, 64, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<Half, Half, 128, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);
template void launch_attention<AttentionTraits<Half, Half, 256, BentScores>>(
    const TreeAttentionParams&, const AttentionLaunch&, int, cudaStream_t);

}  // namespace treeattn::cuda
