// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace treeattn::cuda {

// A __grid_constant__ parameter of a kernel, as a member of an object in shared memory. A GPU has
// one for all threads, for as long as the kernel runs; on the emulator it is each thread's own and
// ends with it, so there it is copied.
#if defined(__CUDACC__)
template <class T>
using GridConstant = const T&;
#else
template <class T>
using GridConstant = const T;
#endif

}  // namespace treeattn::cuda
