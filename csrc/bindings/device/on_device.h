// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "bindings/match.h"
#include "cuda/common/stream.h"

namespace treeattn::bindings {

// Makes the device of `tensor` the current one while it lives, and knows the stream that torch
// uses there. The CUDA module and the host emulator each have their own.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& tensor);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  cudaStream_t stream() const { return stream_; }

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace treeattn::bindings
