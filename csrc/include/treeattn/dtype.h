// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace treeattn {

enum class DType : int8_t { kFloat32, kBFloat16, kFloat16, kFloat8E4M3 };

constexpr int element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat8E4M3:
      return 1;
    default:
      return 2;
  }
}

}  // namespace treeattn
