// SPDX-License-Identifier: Apache-2.0
// The emulator has one device, the host, and no streams.
#include "bindings/device/on_device.h"

namespace treeattn::bindings {

struct OnDevice::Guard {};

OnDevice::OnDevice(const Tensor&) {}
OnDevice::~OnDevice() = default;

}  // namespace treeattn::bindings
