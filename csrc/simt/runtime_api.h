// SPDX-License-Identifier: Apache-2.0
// The few calls of the CUDA runtime that launchers make. A stream is the order of the calls.
#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda/common/stream.h"
#include "simt/machine.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);

namespace treeattn::simt {

// Checks what a device would, then runs, or waits in a graph (graph.h). `invoke(call)` runs the
// kernel for one thread.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, size_t param_bytes,
                   void (*invoke)(void*), std::shared_ptr<void> call);

// What parameters take, each at its alignment.
template <class... Params>
constexpr size_t param_bytes_of() {
  size_t bytes = 0;
  ((bytes = (bytes + alignof(Params) - 1) / alignof(Params) * alignof(Params) + sizeof(Params)),
   ...);
  return bytes;
}

}  // namespace treeattn::simt

template <class... Expected, class... Actual>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...),
                               Actual&&... actual) {
  struct Call {
    void (*kernel)(Expected...);
    std::tuple<std::decay_t<Expected>...> params;
  };
  std::shared_ptr<Call> call(new Call{kernel, {std::forward<Actual>(actual)...}});
  return treeattn::simt::launch(
      *config, reinterpret_cast<const void*>(kernel),
      treeattn::simt::param_bytes_of<std::decay_t<Expected>...>(),
      [](void* memory) {
        const Call& c = *static_cast<const Call*>(memory);
        std::apply(c.kernel, c.params);
      },
      std::move(call));
}
