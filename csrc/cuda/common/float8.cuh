// SPDX-License-Identifier: Apache-2.0
// fp8 e4m3 by integer and fp32 arithmetic, for machines that have no instruction for it (before
// sm_89, and the host).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace treeattn::cuda {

// Round to nearest even, saturated at +-448; NaN stays NaN.
__device__ __forceinline__ uint8_t e4m3_by_hand(float f) {
  const uint32_t bits = __float_as_uint(f);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude >= 0x43e00000) return static_cast<uint8_t>(sign | 0x7e);  // 448 or more
  if (magnitude < 0x3c800000) {  // below 2^-6: the fp32 adder rounds at 2^-9, the last bit of 2^14
    const float sum = __uint_as_float(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (__float_as_uint(sum) - 0x46800000));
  }
  const uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
  return static_cast<uint8_t>(sign | ((rounded - 0x3c000000) >> 20));
}

// e4m3 to the bits of a half, exactly: the same bits seven places up are 2^-8 of the value.
__device__ __forceinline__ uint16_t half_by_hand(uint8_t e4m3) {
  const uint32_t magnitude = e4m3 & 0x7f;
  const uint32_t sign = (e4m3 & 0x80u) << 8;
  if (magnitude == 0x7f) return static_cast<uint16_t>(sign | 0x7fff);
  if (magnitude >= 8) return static_cast<uint16_t>(sign | ((magnitude << 7) + (8u << 10)));
  // Subnormal: magnitude * 2^-9, which half holds as a normal number.
  const float value = static_cast<float>(magnitude) * 0x1p-9f;
  const uint32_t bits = __float_as_uint(value);
  return static_cast<uint16_t>(sign | (magnitude == 0 ? 0 : (bits - 0x38000000) >> 13));
}

}  // namespace treeattn::cuda
