// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace treeattn::simt {

// The same bits fourteen places up are 2^-112 of the value; infinity and NaN need the top exponent.
inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const float scaled = __builtin_bit_cast(float, magnitude) * 0x1p112f;
  uint32_t bits = __builtin_bit_cast(uint32_t, scaled);
  if (magnitude >= 0x0f800000) bits |= 0x7f800000;
  return __builtin_bit_cast(float, bits | (half & 0x8000u) << 16);
}

// Round to nearest even; NaN stays NaN.
inline uint16_t float_to_half(float f) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, f);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7fff);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 or more
  if (magnitude < 0x38800000) {  // subnormal: the adder rounds at 2^-24, the last bit of 0.5
    const float sum = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, sum) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign |
                               ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}
inline uint16_t float_to_bf16(float f) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, f);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace treeattn::simt
