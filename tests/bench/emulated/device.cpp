// SPDX-License-Identifier: Apache-2.0
// micro/cuda/device.h on the host: memory is malloc's, so that a sanitizer sees every step over an
// end, a graph is the list of its calls, and times are the host's.
#include "micro/cuda/device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "micro/common/errors.h"

namespace treeattn::micro {

// So that a test sees what a machine without a GPU gets.
void require_device() {
  if (std::getenv("TREEATTN_MICRO_NO_GPU") != nullptr) {
    throw UnavailableError("needs a GPU: told to see none");
  }
}

// Small, so that little data is cold and grids stay small.
const Device& device() {
  static const Device device{.name = "host emulator", .num_sms = 2, .l2_bytes = 1 << 16};
  return device;
}

int64_t free_device_bytes() { return int64_t{1} << 30; }

cudaStream_t device_stream() { return nullptr; }
void wait_for_device() {}

DeviceMemory::DeviceMemory(int64_t num_bytes) : data_(std::malloc(num_bytes)) {
  if (data_ != nullptr) std::memset(data_.get(), 0xff, num_bytes);  // NaN, and no index
}
void DeviceMemory::Free::operator()(void* data) const { std::free(data); }

void copy_to_device(void* to, const void* host, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(to, host, num_bytes);
}
void copy_to_host(void* host, const void* from, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(host, from, num_bytes);
}
void copy_on_device(void* to, const void* from, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(to, from, num_bytes);
}
void set_device_bytes(void* to, int value, int64_t num_bytes) {
  if (num_bytes > 0) std::memset(to, value, num_bytes);
}

struct Replay::Graph {
  int num_calls;
  std::function<void(int)> call;
};

Replay::Replay(int num_calls, const std::function<void(int)>& call)
    : graph_(std::make_unique<Graph>(Graph{num_calls, call})) {}

Replay::~Replay() = default;

double Replay::run_us(int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times * graph_->num_calls; ++i) graph_->call(i % graph_->num_calls);
  const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
  return us.count();
}

}  // namespace treeattn::micro
