// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/stream.h"
#include "treeattn/remap_kv.h"

namespace treeattn::cuda {

// `workspace`: remap_kv_workspace_size values of any content, 16-byte aligned.
// `header`: kRemapHeaderSize values (plan_work.h), zero before the first call with a plan and left
// fit for the next; one stream at a time.
//
// One launch, whatever the batch; past kMostPlanes planes, one for each kMostPlanes of them.
// Nothing on the host depends on what the tensors hold.
//
// What the CPU op refuses is status kInvalid of its request here: then nothing of it moves, its row
// of block_table stays, and `status`, which belongs to the acceptance, is overwritten. Two requests
// that list one block at or after their context are both refused; where one of them has it among
// its committed blocks, only the other.
void remap_kv(const RemapKvParams& p, int32_t* workspace, int32_t* header, cudaStream_t stream);

}  // namespace treeattn::cuda
