// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cpu/tree_attention_kernel.h"

namespace treeattn::cpu {

std::vector<AttentionTile> attention_tiles(const TreeAttentionParams& p);
AttentionScratch attention_scratch(const TreeAttentionParams& p);

// Computes all rows of one tile; tiles are independent and may run in any order.
using AttendTile = void (*)(const TreeAttentionParams&, const AttentionScratch&,
                            const AttentionTile&, float* scratch);
AttendTile attend_tile_kernel();

// Zeroes the rows that no live request owns: their out is 0 and their lse -inf.
void clear_unowned_rows(const TreeAttentionParams& p);

}  // namespace treeattn::cpu
