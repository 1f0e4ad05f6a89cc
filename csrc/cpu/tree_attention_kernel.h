// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/tree_attention.h"

namespace treeattn::cpu {

// One work item: some nodes of one request, consecutive in depth-first order, with all query heads
// of one KV head. Packed row = node * group + head in group.
struct AttentionTile {
  int request;
  int first;  // into `order`, relative to the request
  int num_nodes;
  int kv_head;
};

// Scratch of one thread, as offsets in floats.
struct AttentionScratch {
  int64_t q, out, max, sum, rescale, k_transposed, v_rows, scores, compact, union_nodes, size;
};

// One per instruction set, all from tree_attention_kernel.cpp.
namespace portable {
void attend_tile(const TreeAttentionParams&, const AttentionScratch&, const AttentionTile&, float*);
}
namespace avx2 {
void attend_tile(const TreeAttentionParams&, const AttentionScratch&, const AttentionTile&, float*);
}
namespace avx512 {
void attend_tile(const TreeAttentionParams&, const AttentionScratch&, const AttentionTile&, float*);
}
namespace avx512_bf16 {
void attend_tile(const TreeAttentionParams&, const AttentionScratch&, const AttentionTile&, float*);
}

}  // namespace treeattn::cpu
