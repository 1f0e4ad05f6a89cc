// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace treeattn::cuda {

// A grid, and where it is launched, for the error: kernels have no name at run time.
struct Grid {
  Grid(dim3 size_, std::source_location site_ = std::source_location::current())
      : size(size_), site(site_) {}
  Grid(unsigned x, std::source_location site_ = std::source_location::current())
      : size(x), site(site_) {}
  dim3 size;
  std::source_location site;
};

[[noreturn]] inline void fail_launch(const Grid& grid, cudaError_t error) {
  cudaGetLastError();  // not the next call's error
  throw std::runtime_error(std::string("kernel launched by ") + grid.site.function_name() + " (" +
                           grid.site.file_name() + ":" + std::to_string(grid.site.line()) +
                           "): " + cudaGetErrorString(error));
}

// What a CTA may have of dynamic shared memory without asking.
inline constexpr size_t kUnaskedSharedBytes = 48 * 1024;

// Lets `kernel` have `bytes` on the current device. Asking costs a look into the driver, so the
// last answers are kept; a slot that another kernel took over only means asking again.
template <class... Expected>
void allow_shared_bytes(void (*kernel)(Expected...), size_t bytes, const Grid& grid) {
  if (bytes <= kUnaskedSharedBytes) return;
  struct Granted {
    const void* kernel = nullptr;
    int device = -1;
    size_t bytes = 0;
  };
  constexpr size_t kSlots = 64;
  thread_local Granted slots[kSlots];
  const void* function = reinterpret_cast<const void*>(kernel);
  Granted& slot = slots[reinterpret_cast<size_t>(function) / 16 % kSlots];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess &&
      (slot.kernel != function || slot.device != device || slot.bytes < bytes)) {
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes));
    if (error == cudaSuccess) slot = {function, device, bytes};
  }
  if (error != cudaSuccess) fail_launch(grid, error);
}

// Queues `kernel` on `stream`; an empty grid is no launch. Never waits, never allocates. Errors
// that only the running kernel can make are seen by a later call, as everywhere in CUDA.
template <class... Expected, class... Actual>
void launch(void (*kernel)(Expected...), Grid grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Actual&&... params) {
  if (grid.size.x == 0 || grid.size.y == 0 || grid.size.z == 0) return;
  allow_shared_bytes(kernel, shared_bytes, grid);
  cudaLaunchConfig_t config{};
  config.gridDim = grid.size;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Actual>(params)...);
  if (error != cudaSuccess) fail_launch(grid, error);
}

}  // namespace treeattn::cuda
