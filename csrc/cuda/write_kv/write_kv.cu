// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "cuda/common/alignment.h"
#include "cuda/common/convert.cuh"
#include "cuda/common/launch.h"
#include "cuda/write_kv/write_kv.h"

namespace treeattn::cuda {
namespace {

constexpr int kNumThreads = 128;

// blockDim.x threads share a node, blockDim.y nodes share a CTA; grid (nodes, K or V). A thread
// stores kCount elements of one head at a time: element types differ only for fp8 pools, else bits
// are copied. No thread waits for another.
// Must hold: live slots are distinct; kCount divides head_dim, and every row is aligned to kCount
// elements on both sides.
template <class From, class To, int kCount>
__global__ __launch_bounds__(kNumThreads) void write_kv_kernel(
    const __grid_constant__ WriteKvParams p) {
  const int node = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (node >= p.num_nodes) return;
  const bool is_key = blockIdx.y == 0;
  const KvPool& pool = is_key ? p.k_pool : p.v_pool;
  const int64_t slot = load_global(p.slot_mapping + node);
  if (slot < 0 || slot >= int64_t{pool.num_blocks} * pool.block_size) return;
  const From* rows = static_cast<const From*>(is_key ? p.k : p.v) +
                     node * (is_key ? p.stride_k_node : p.stride_v_node);
  const int64_t stride_head = is_key ? p.stride_k_head : p.stride_v_head;
  To* const stored = static_cast<To*>(pool.data) + kv_offset(pool, slot, 0);
  const int packs_per_head = pool.head_dim / kCount;
  const int num_packs = pool.num_kv_heads * packs_per_head;
  for (int i = static_cast<int>(threadIdx.x); i < num_packs; i += static_cast<int>(blockDim.x)) {
    const int head = i / packs_per_head, dim = i % packs_per_head * kCount;
    const Pack<From, kCount> from = load_pack<From, kCount>(rows + head * stride_head + dim);
    Pack<To, kCount> to;
    if constexpr (std::is_same_v<From, To>) {
      to = from;
    } else {
      const float scale =
          pool.scale == nullptr ? 1.0f : load_global(pool.scale + head * pool.stride_scale);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        to.elements[j] = from_float<To>(to_float(from.elements[j]) / scale);
      }
    }
    store_pack(stored + head * pool.stride_head + dim, to);
  }
}

template <class From, class To, int kCount>
void launch_write_kv(const WriteKvParams& p, cudaStream_t stream) {
  const auto num_packs =
      static_cast<unsigned>(int64_t{p.k_pool.num_kv_heads} * p.k_pool.head_dim / kCount);
  // A power of two, so that it divides the CTA.
  const unsigned per_node = std::bit_ceil(num_packs < kNumThreads ? num_packs : kNumThreads);
  const unsigned nodes_per_cta = kNumThreads / per_node;
  const unsigned num_ctas =
      (static_cast<unsigned>(p.num_nodes) + nodes_per_cta - 1) / nodes_per_cta;
  launch(write_kv_kernel<From, To, kCount>, dim3(num_ctas, 2), dim3(per_node, nodes_per_cta), 0,
         stream, p);
}

template <class From, class To>
void choose_width(const WriteKvParams& p, cudaStream_t stream) {
  constexpr int kCount = kElementsPer16<From>;
  const auto wide = [](const void* rows, int64_t stride_node, int64_t stride_head,
                       const KvPool& pool) {
    return pool.head_dim % kCount == 0 &&
           rows_aligned(rows, {stride_node, stride_head}, sizeof(From), 16) &&
           rows_aligned(pool.data, {pool.stride_block, pool.stride_row, pool.stride_head},
                        sizeof(To), sizeof(To) * kCount);
  };
  if (wide(p.k, p.stride_k_node, p.stride_k_head, p.k_pool) &&
      wide(p.v, p.stride_v_node, p.stride_v_head, p.v_pool)) {
    launch_write_kv<From, To, kCount>(p, stream);
  } else {
    launch_write_kv<From, To, 1>(p, stream);
  }
}

}  // namespace

void write_kv(const WriteKvParams& p, cudaStream_t stream) {
  if (p.num_nodes == 0 || p.k_pool.num_kv_heads == 0) return;
  with_float_type(p.dtype, [&](auto element) {
    using From = decltype(element);
    if (p.k_pool.dtype == DType::kFloat8E4M3) {
      choose_width<From, Float8E4M3>(p, stream);
    } else {
      choose_width<From, From>(p, stream);
    }
  });
}

}  // namespace treeattn::cuda
