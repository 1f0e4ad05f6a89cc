// SPDX-License-Identifier: Apache-2.0
#include "micro/cuda/device.h"

#include <cuda_runtime.h>

#include <stdexcept>

#include "micro/common/errors.h"

namespace treeattn::micro {
namespace {

void require(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  require(cudaDeviceGetAttribute(&value, which, 0), "cudaDeviceGetAttribute");
  return value;
}

struct Event {
  Event() { require(cudaEventCreate(&event), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { require(cudaEventRecord(event, device_stream()), "cudaEventRecord"); }
  cudaEvent_t event;
};

}  // namespace

void require_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    throw UnavailableError(std::string("needs a GPU: ") + cudaGetErrorString(error));
  }
  if (count == 0) throw UnavailableError("needs a GPU: the driver sees none");
}

const Device& device() {
  static const Device device = [] {
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    return Device{.name = properties.name,
                  .num_sms = attribute(cudaDevAttrMultiProcessorCount),
                  .l2_bytes = attribute(cudaDevAttrL2CacheSize)};
  }();
  return device;
}

int64_t free_device_bytes() {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

// Not the default stream: that one cannot be captured.
cudaStream_t device_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    require(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return made;
  }();
  return stream;
}

void wait_for_device() {
  require(cudaStreamSynchronize(device_stream()), "cudaStreamSynchronize");
  require(cudaGetLastError(), "a kernel");
}

DeviceMemory::DeviceMemory(int64_t num_bytes) {
  void* data = nullptr;
  if (num_bytes > 0) require(cudaMalloc(&data, static_cast<size_t>(num_bytes)), "cudaMalloc");
  data_.reset(data);
}

void DeviceMemory::Free::operator()(void* data) const { cudaFree(data); }

void copy_to_device(void* to, const void* host, int64_t num_bytes) {
  require(cudaMemcpyAsync(to, host, static_cast<size_t>(num_bytes), cudaMemcpyHostToDevice,
                          device_stream()),
          "cudaMemcpyAsync");
  wait_for_device();
}

void copy_to_host(void* host, const void* from, int64_t num_bytes) {
  require(cudaMemcpyAsync(host, from, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToHost,
                          device_stream()),
          "cudaMemcpyAsync");
  wait_for_device();
}

void copy_on_device(void* to, const void* from, int64_t num_bytes) {
  require(cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToDevice,
                          device_stream()),
          "cudaMemcpyAsync");
}

void set_device_bytes(void* to, int value, int64_t num_bytes) {
  require(cudaMemsetAsync(to, value, static_cast<size_t>(num_bytes), device_stream()),
          "cudaMemsetAsync");
}

struct Replay::Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  Event start, stop;

  ~Graph() {
    if (ready != nullptr) cudaGraphExecDestroy(ready);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

Replay::Replay(int num_calls, const std::function<void(int)>& call)
    : graph_(std::make_unique<Graph>()) {
  require(cudaStreamBeginCapture(device_stream(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
  for (int i = 0; i < num_calls; ++i) call(i);
  require(cudaStreamEndCapture(device_stream(), &graph_->graph), "cudaStreamEndCapture");
  require(cudaGraphInstantiate(&graph_->ready, graph_->graph, 0), "cudaGraphInstantiate");
  require(cudaGraphUpload(graph_->ready, device_stream()), "cudaGraphUpload");
  wait_for_device();
}

Replay::~Replay() = default;

double Replay::run_us(int times) {
  graph_->start.record();
  for (int i = 0; i < times; ++i) {
    require(cudaGraphLaunch(graph_->ready, device_stream()), "cudaGraphLaunch");
  }
  graph_->stop.record();
  wait_for_device();
  float ms = 0;
  require(cudaEventElapsedTime(&ms, graph_->start.event, graph_->stop.event),
          "cudaEventElapsedTime");
  return 1e3 * static_cast<double>(ms);
}

}  // namespace treeattn::micro
