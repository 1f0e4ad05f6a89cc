// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/stable/library.h>

namespace treeattn::bindings {

using Library = torch::stable::detail::StableLibrary;

// Every op, with its arguments. Results are written into tensors that the caller allocated.
void define_ops(Library& library);

}  // namespace treeattn::bindings
