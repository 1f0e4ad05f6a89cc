// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"

namespace treeattn::cuda {

// Elements as they lie in memory. The type also chooses the instruction: mma_m16n8k16<BFloat16>.
struct Float32 {
  static constexpr DType kDType = DType::kFloat32;
  float value;
};
struct BFloat16 {
  static constexpr DType kDType = DType::kBFloat16;
  uint16_t bits;
};
struct Half {
  static constexpr DType kDType = DType::kFloat16;
  uint16_t bits;
};
struct Float8E4M3 {
  static constexpr DType kDType = DType::kFloat8E4M3;
  uint8_t bits;
};

// Calls f with a value of the q/k/v element type that `dtype` names.
template <class F>
void with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat16:
      return f(Half{});
    default:
      return f(Float32{});
  }
}

}  // namespace treeattn::cuda
