// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/alignment.h"
#include "cuda/common/launch.h"
#include "cuda/tree_attention/kernel.cuh"
#include "cuda/tree_attention/rows_kernel.cuh"
#include "cuda/tree_attention/tree_attention.h"
#include "treeattn/check.h"

namespace treeattn::cuda {
namespace {

// Keys of a part when the result may not depend on the batch: few enough parts for the states to be
// small against the cache, enough of them to keep a GPU busy on one long request.
constexpr int kInvariantKeys = 4096;

int padded_dim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

int tile_keys(int head_dim) { return padded_dim(head_dim) <= 128 ? 64 : 32; }

bool pool_is_wide(const KvPool& pool) {
  return pool.head_dim * element_size(pool.dtype) % 16 == 0 &&
         rows_aligned(pool.data, {pool.stride_block, pool.stride_row, pool.stride_head},
                      element_size(pool.dtype), 16);
}

// Whether a score needs more than a positive factor.
bool bends(const TreeAttentionParams& p) {
  return p.window > 0 || p.logits_soft_cap > 0.0f || p.alibi_slopes != nullptr ||
         !(p.sm_scale > 0.0f);
}

template <class T, class Kv>
void attend(const TreeAttentionParams& p, const AttentionLaunch& l, int num_ctas,
            cudaStream_t stream) {
  const int head_dim = p.k_pool.head_dim;
  if constexpr (std::is_same_v<T, Kv>) {
    if (!bends(p) && head_dim <= 128) {
      if (head_dim <= 64) {
        launch_attention<AttentionTraits<T, Kv, 64, PlainScores>>(p, l, num_ctas, stream);
      } else {
        launch_attention<AttentionTraits<T, Kv, 128, PlainScores>>(p, l, num_ctas, stream);
      }
      return;
    }
  }
  if (head_dim <= 64) {
    launch_attention<AttentionTraits<T, Kv, 64, BentScores>>(p, l, num_ctas, stream);
  } else if (head_dim <= 128) {
    launch_attention<AttentionTraits<T, Kv, 128, BentScores>>(p, l, num_ctas, stream);
  } else {
    launch_attention<AttentionTraits<T, Kv, 256, BentScores>>(p, l, num_ctas, stream);
  }
}

template <class Kv>
void attend_rows(const TreeAttentionParams& p, const AttentionLaunch& l, cudaStream_t stream) {
  const int64_t num_rows = int64_t{p.num_nodes} * p.num_qo_heads;
  launch(tree_attention_rows_kernel<Kv>,
         static_cast<unsigned>((num_rows + kRowWarps - 1) / kRowWarps), 32 * kRowWarps,
         sizeof(RowShared), stream, p, l);
}

}  // namespace

int64_t attention_states_size(const TreeAttentionParams& p, bool batch_invariant, int num_ctas) {
  if (p.dtype == DType::kFloat32) return 0;
  const int64_t state = kTileRows * (padded_dim(p.k_pool.head_dim) + 8);
  if (!batch_invariant) return 2 * state * num_ctas;
  const int64_t most_keys = int64_t{p.max_blocks} * p.k_pool.block_size + p.num_nodes;
  const int64_t parts = (most_keys + kInvariantKeys - 1) / kInvariantKeys;
  if (parts == 1) return 0;
  const int group_size = p.num_qo_heads / p.k_pool.num_kv_heads;
  return parts * state * p.k_pool.num_kv_heads *
         first_row_tile(p.num_nodes, p.num_requests, group_size);
}

void tree_attention(const TreeAttentionParams& p, const AttentionWorkspace& workspace,
                    cudaStream_t stream) {
  if (p.num_nodes == 0) return;
  TREEATTN_CHECK(p.k_pool.head_dim <= kMaxHeadDim, "tree_attention: head_dim must be at most ",
                 kMaxHeadDim, " on this device, got ", p.k_pool.head_dim);
  const int element = element_size(p.dtype);
  const bool dims_are_wide = p.k_pool.head_dim * element % 16 == 0;
  const AttentionLaunch l{
      .work = workspace.plan,
      .states = workspace.states,
      .unit_tiles = workspace.batch_invariant ? kInvariantKeys / tile_keys(p.k_pool.head_dim) : 0,
      .one_over_cap = p.logits_soft_cap > 0.0f ? 1.0f / p.logits_soft_cap : 0.0f,
      .wide_queries =
          dims_are_wide && rows_aligned(p.q, {p.stride_q_node, p.stride_q_head}, element, 16),
      .wide_keys = pool_is_wide(p.k_pool) && pool_is_wide(p.v_pool),
      .wide_out =
          dims_are_wide && rows_aligned(p.out, {p.stride_out_node, p.stride_out_head}, element, 16),
  };
  const bool is_fp8 = p.k_pool.dtype == DType::kFloat8E4M3;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, Float32>) {
      is_fp8 ? attend_rows<Float8E4M3>(p, l, stream) : attend_rows<Float32>(p, l, stream);
    } else {
      is_fp8 ? attend<T, Float8E4M3>(p, l, workspace.num_ctas, stream)
             : attend<T, T>(p, l, workspace.num_ctas, stream);
    }
  });
}

}  // namespace treeattn::cuda
