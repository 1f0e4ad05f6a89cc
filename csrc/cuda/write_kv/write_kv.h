// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/stream.h"
#include "treeattn/write_kv.h"

namespace treeattn::cuda {

// Queues the stores of all nodes. A slot outside the pool is skipped like -1: only the device sees
// it, and it must not become a wild write.
void write_kv(const WriteKvParams& p, cudaStream_t stream);

}  // namespace treeattn::cuda
