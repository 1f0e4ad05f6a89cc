// SPDX-License-Identifier: Apache-2.0
// What the programs need of the CUDA runtime. device.cpp has it from CUDA; for tests without a GPU,
// tests/bench/emulated_device.cpp has it from the host emulator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cuda/common/stream.h"

namespace treeattn::micro {

struct Device {
  std::string name;
  int num_sms;
  int64_t l2_bytes;
};

// Throws UnavailableError without a GPU. The program's device is the first one.
void require_device();
const Device& device();
int64_t free_device_bytes();

// The stream of everything here; wait_for_device() throws what went wrong on it.
cudaStream_t device_stream();
void wait_for_device();

class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t num_bytes);
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
};

void copy_to_device(void* to, const void* host, int64_t num_bytes);
void copy_to_host(void* host, const void* from, int64_t num_bytes);
// Queued only.
void copy_on_device(void* to, const void* from, int64_t num_bytes);
void set_device_bytes(void* to, int value, int64_t num_bytes);

// The kernels of call(0) .. call(num_calls - 1), recorded once as a CUDA graph.
class Replay {
 public:
  Replay(int num_calls, const std::function<void(int)>& call);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Runs all of them `times` times, between two events; microseconds.
  double run_us(int times);

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace treeattn::micro
