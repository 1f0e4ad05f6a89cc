// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "bindings/device/on_device.h"

namespace treeattn::bindings {

struct OnDevice::Guard : torch::stable::accelerator::DeviceGuard {
  using DeviceGuard::DeviceGuard;
};

OnDevice::OnDevice(const Tensor& tensor) {
  const int32_t index = tensor.get_device_index();
  guard_ = std::make_unique<Guard>(index);
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index, &stream));
  stream_ = static_cast<cudaStream_t>(stream);
}

OnDevice::~OnDevice() = default;

}  // namespace treeattn::bindings
