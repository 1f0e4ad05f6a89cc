// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/tree_attention.h"

namespace treeattn::cpu {

// Some nodes of one request, consecutive in depth-first order, with all query heads of one KV
// head. Packed row = node * group + head in group.
struct AttentionPanel {
  int request;
  int first;  // into `order`, relative to the request
  int num_nodes;
  int kv_head;
};

// A row's keys lie on a virtual axis: key j < context_len is logical slot j, key context_len + d is
// the row's ancestor of depth d. The axis is cut into chunks, dealt out to streams in turn. A
// stream is one online softmax over its chunks in ascending order; the streams of a row are merged
// in ascending order. None of it depends on anything but the row's own keys, so a row has the same
// bits whoever computes its streams, and whatever else is in the batch.
inline constexpr int kTileKeys = 64;  // of the axis, in one product
inline constexpr int kChunkKeys = 256;
inline constexpr int kNumStreams = 8;

// Nodes that do a tile of the tree together.
inline constexpr int kMaxTileNodes = 16;
// Rows are padded to this many floats, enough for every instruction set.
inline constexpr int kMaxLanes = 16;

// Rows of a panel that go through scores, softmax and values together, so that their queries and
// scores stay in the L1 cache.
constexpr int attention_group_rows(int padded_dim) {
  return padded_dim <= 64 ? 96 : padded_dim <= 128 ? 48 : 24;
}

// Memory as offsets in floats: of the scratch of one thread, and of what a stream leaves behind.
struct AttentionLayout {
  int64_t queries, path_queries, keys, values, scores, dense, tops, rescale, union_nodes;
  int64_t states[2];
  int64_t scratch_size;
  int64_t state_out, state_maxima, state_sums;
  int64_t state_size;
};

// Bit s: stream s has keys of the panel.
uint32_t streams_of(const TreeAttentionParams& p, const AttentionPanel& panel);

struct AttentionKernel {
  // All streams of a panel, its rows written to out and lse.
  void (*attend)(const TreeAttentionParams&, const AttentionLayout&, const AttentionPanel&,
                 float* scratch);
  // One stream of a panel into states[stream], states lying state_size apart.
  void (*attend_stream)(const TreeAttentionParams&, const AttentionLayout&, const AttentionPanel&,
                        int stream, float* scratch, float* states);
  // Once all streams of a panel are there: merges them and writes the rows.
  void (*merge_streams)(const TreeAttentionParams&, const AttentionLayout&, const AttentionPanel&,
                        float* scratch, float* states);
};

// One per instruction set, all from tree_attention_kernel.cpp.
namespace portable {
AttentionKernel attention_kernel(const TreeAttentionParams&);
}
namespace avx2 {
AttentionKernel attention_kernel(const TreeAttentionParams&);
}
namespace avx512 {
AttentionKernel attention_kernel(const TreeAttentionParams&);
}
namespace avx512_bf16 {
AttentionKernel attention_kernel(const TreeAttentionParams&);
}

}  // namespace treeattn::cpu
