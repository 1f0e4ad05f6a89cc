// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "cuda/common/alignment.h"
#include "cuda/common/convert.cuh"
#include "cuda/common/launch.h"
#include "cuda/merge_states/merge_states.h"

namespace treeattn::cuda {
namespace {

constexpr int kNumThreads = 128;
constexpr unsigned kMaxGridHeads = 65535;

// What one row does with its two states. Empty ones are left out rather than weighed, so that the
// other keeps its bits and a NaN beside -inf is never looked at.
struct Weights {
  float a;
  float b;
  float lse;
};

__device__ __forceinline__ Weights weigh(float lse_a, float lse_b) {
  const float top = fmaxf(lse_a, lse_b);
  const float a = expf(lse_a - top), b = expf(lse_b - top);
  return {a, b, top + logf(a + b)};
}

// blockDim.x threads share a row (a node and a head), blockDim.y nodes share a CTA; grid (nodes,
// heads). A thread merges kCount elements at a time; thread x = 0 of a row writes its lse. No
// thread waits for another.
// Must hold: kCount divides head_dim, and every row is aligned to kCount elements.
template <class T, int kCount>
__global__ __launch_bounds__(kNumThreads) void merge_states_kernel(
    const __grid_constant__ MergeStatesParams p) {
  const int64_t node = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t num_nodes = p.num_rows / p.num_heads;
  if (node >= num_nodes) return;
  for (int head = static_cast<int>(blockIdx.y); head < p.num_heads;
       head += static_cast<int>(gridDim.y)) {
    const auto lse_of = [&](const AttentionState& state) {
      return load_global(state.lse + node * state.stride_lse_node + head * state.stride_lse_head);
    };
    const auto out_of = [&](const AttentionState& state) {
      return static_cast<const T*>(state.out) + node * state.stride_out_node +
             head * state.stride_out_head;
    };
    const float lse_a = lse_of(p.a), lse_b = lse_of(p.b);
    const bool has_a = lse_a != -INFINITY, has_b = lse_b != -INFINITY;
    const Weights weights =
        has_a && has_b ? weigh(lse_a, lse_b) : Weights{1.0f, 1.0f, has_a ? lse_a : lse_b};
    const T* const a = out_of(p.a);
    const T* const b = out_of(p.b);
    const int64_t row = node * p.num_heads + head;
    T* const out = static_cast<T*>(p.out) + row * p.head_dim;
    if (threadIdx.x == 0) store_global(p.lse + row, weights.lse);
    for (int dim = static_cast<int>(threadIdx.x) * kCount; dim < p.head_dim;
         dim += static_cast<int>(blockDim.x) * kCount) {
      Pack<T, kCount> merged{};
      if (has_a && has_b) {
        const Pack<T, kCount> from_a = load_pack<T, kCount>(a + dim);
        const Pack<T, kCount> from_b = load_pack<T, kCount>(b + dim);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const float sum =
              weights.a * to_float(from_a.elements[i]) + weights.b * to_float(from_b.elements[i]);
          merged.elements[i] = from_float<T>(sum / (weights.a + weights.b));
        }
      } else if (has_a || has_b) {
        merged = load_pack<T, kCount>((has_a ? a : b) + dim);
      }
      store_pack(out + dim, merged);
    }
  }
}

template <class T, int kCount>
void launch_merge_states(const MergeStatesParams& p, cudaStream_t stream) {
  const auto num_packs = static_cast<unsigned>(p.head_dim / kCount);
  // A power of two, so that it divides the CTA.
  const unsigned per_row = std::bit_ceil(num_packs < kNumThreads ? num_packs : kNumThreads);
  const unsigned nodes_per_cta = kNumThreads / per_row;
  const auto num_nodes = static_cast<uint64_t>(p.num_rows / p.num_heads);
  const auto num_heads = static_cast<unsigned>(p.num_heads);
  const auto num_ctas = static_cast<unsigned>((num_nodes + nodes_per_cta - 1) / nodes_per_cta);
  launch(merge_states_kernel<T, kCount>,
         dim3(num_ctas, num_heads < kMaxGridHeads ? num_heads : kMaxGridHeads),
         dim3(per_row, nodes_per_cta), 0, stream, p);
}

}  // namespace

void merge_states(const MergeStatesParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return;
  with_float_type(p.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = kElementsPer16<T>;
    const auto wide = [&](const AttentionState& state) {
      return rows_aligned(state.out, {state.stride_out_node, state.stride_out_head}, sizeof(T), 16);
    };
    if (p.head_dim % kCount == 0 && wide(p.a) && wide(p.b) &&
        rows_aligned(p.out, {p.head_dim}, sizeof(T), 16)) {
      launch_merge_states<T, kCount>(p, stream);
    } else {
      launch_merge_states<T, 1>(p, stream);
    }
  });
}

}  // namespace treeattn::cuda
