// SPDX-License-Identifier: Apache-2.0
#include "simt/runtime_api.h"

#include <cstring>
#include <map>
#include <utility>

#include "simt/graph.h"
#include "simt/launch_log.h"

namespace {

// An A100's limits; few multiprocessors, so that grids made by their number stay small.
constexpr int kNumMultiprocessors = 8;
constexpr int kSharedBytesPerMultiprocessor = 164 * 1024;
constexpr int kSharedBytesPerCta = 163 * 1024;
constexpr int kSharedBytesUnasked = 48 * 1024;
constexpr size_t kParamBytes = 32764;  // from CUDA 12.1 on
constexpr unsigned kMaxGridX = 0x7fffffff, kMaxGridYZ = 65535, kMaxBlockZ = 64;

std::map<const void*, int> granted_bytes;

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return treeattn::simt::fault().c_str();
  }
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kNumMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedBytesPerMultiprocessor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedBytesPerCta;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value > kSharedBytesPerCta) return cudaErrorInvalidValue;
  granted_bytes[kernel] = value;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  return treeattn::simt::submit([=] {
    if (bytes > 0) std::memset(memory, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  return treeattn::simt::submit([=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}

namespace treeattn::simt {

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, size_t param_bytes,
                   void (*invoke)(void*), std::shared_ptr<void> call) {
  if (param_bytes > kParamBytes) return cudaErrorInvalidValue;
  const dim3 &grid = config.gridDim, &block = config.blockDim;
  const int64_t num_threads = int64_t{block.x} * block.y * block.z;
  if (num_threads < 1 || num_threads > kMaxThreads || block.z > kMaxBlockZ || grid.x < 1 ||
      grid.y < 1 || grid.z < 1 || grid.x > kMaxGridX || grid.y > kMaxGridYZ ||
      grid.z > kMaxGridYZ) {
    return cudaErrorInvalidConfiguration;
  }
  if (config.dynamicSmemBytes > kSharedBytesUnasked) {
    const auto granted = granted_bytes.find(kernel);
    if (granted == granted_bytes.end() ||
        config.dynamicSmemBytes > static_cast<size_t>(granted->second)) {
      return cudaErrorInvalidValue;
    }
  }
  log_launch(kernel, num_threads, config.dynamicSmemBytes);
  const Launch request{.grid = {grid.x, grid.y, grid.z},
                       .block = {block.x, block.y, block.z},
                       .shared_bytes = config.dynamicSmemBytes,
                       .invoke = invoke,
                       .call = call.get()};
  return submit([request, call = std::move(call)] {
    return run(request) ? cudaSuccess : cudaErrorLaunchFailure;
  });
}

}  // namespace treeattn::simt
