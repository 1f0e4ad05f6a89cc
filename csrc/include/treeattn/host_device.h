// SPDX-License-Identifier: Apache-2.0
#pragma once

// Before a function that both the CPU and the CUDA kernels instantiate. constexpr alone, as nvcc
// extends it to devices, will not do: such a function calls back into kernels.
#if defined(__CUDACC__)
#define TREEATTN_HOST_DEVICE __host__ __device__
#else
#define TREEATTN_HOST_DEVICE
#endif
