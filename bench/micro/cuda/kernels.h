// SPDX-License-Identifier: Apache-2.0
// The programs' own kernels: what the machine can do at most, and data made where it is read.
#pragma once

#include <cstdint>

#include "cuda/common/stream.h"
#include "treeattn/dtype.h"

namespace treeattn::micro {

void launch_nothing(cudaStream_t stream);

// Both 16-byte aligned; num_bytes a multiple of 16.
void copy_bytes(void* to, const void* from, int64_t num_bytes, int num_sms, cudaStream_t stream);

// mma.sync of bf16 on every multiprocessor, from registers. `sums`: one float, never written.
void spend_mma(float* sums, int rounds, int num_sms, cudaStream_t stream);
double spent_flops(int rounds, int num_sms);

// Mean 0, variance `scale` squared; fp32 or bf16.
void fill_normal(void* data, DType dtype, int64_t count, float scale, uint64_t seed,
                 cudaStream_t stream);

// Lifts 64 tokens of each row as a language model does: heights 16 - 2 log(rank).
void add_likely_tokens(void* logits, DType dtype, int64_t num_rows, int vocab_size,
                       cudaStream_t stream);

}  // namespace treeattn::micro
