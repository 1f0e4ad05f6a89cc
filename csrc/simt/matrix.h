// SPDX-License-Identifier: Apache-2.0
// The matrix instructions of a warp, with the register layouts of the PTX manual.
#pragma once

#include <cstdint>

#include "simt/machine.h"

namespace treeattn::simt {

void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, bool is_bf16, const Site& site);

void ldmatrix_x4(uint32_t* r, const void* shared_row, bool transposed, const Site& site);

void check_aligned_16(const char* what, const void* pointer, const Site& site);
// Aligned, and not in shared memory.
void check_global_16(const char* what, const void* pointer, const Site& site);

}  // namespace treeattn::simt
