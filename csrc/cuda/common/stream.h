// SPDX-License-Identifier: Apache-2.0
#pragma once

// The name that <cuda_runtime.h> gives a stream, for code that is compiled without CUDA.
using cudaStream_t = struct CUstream_st*;
