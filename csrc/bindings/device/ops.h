// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings/schemas.h"

namespace treeattn::bindings {

// Registers the kernels of csrc/cuda, whichever compiler made them: for CUDA tensors in the module
// _cuda, for CPU tensors in the test module _simt.
void implement_device_ops(Library& library);

}  // namespace treeattn::bindings
