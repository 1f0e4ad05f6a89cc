// SPDX-License-Identifier: Apache-2.0
// Typed rows to and from floats. Compiled once per instruction set
// by VECTOR_SOURCES, and as `portable` elsewhere.
#pragma once

#include "cpu/vec.h"
#include "treeattn/dtype.h"

namespace treeattn::cpu::TREEATTN_ISA {

struct Float32 {
  float x;
};
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
struct Float8E4M3 {
  uint8_t bits;
};

// Calls f with a value of the element type that `dtype` names.
template <class F>
inline void with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(Float32{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kFloat8E4M3:
      return f(Float8E4M3{});
  }
}

inline float to_float(Float32 a) { return a.x; }
inline float to_float(BFloat16 a) {
  const uint32_t bits = uint32_t{a.bits} << 16;
  return __builtin_bit_cast(float, bits);
}
inline float to_float(Float16 a) {
  const uint32_t sign = uint32_t{a.bits} >> 15 << 31;
  const uint32_t exponent = (a.bits >> 10) & 31;
  const uint32_t mantissa = a.bits & 1023;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
  return __builtin_bit_cast(float, bits);
}
inline float to_float(Float8E4M3 a) {
  const uint32_t magnitude = a.bits & 127;
  if (magnitude == 127) return __builtin_nanf("");
  const uint32_t exponent = magnitude >> 3;
  const uint32_t mantissa = magnitude & 7;
  const float f = exponent == 0
                      ? static_cast<float>(mantissa) * 0x1p-9f
                      : __builtin_bit_cast(float, (exponent + 120) << 23 | mantissa << 20);
  return a.bits & 128 ? -f : f;
}

// Round to nearest even; NaN stays NaN.
inline void from_float(float f, Float32& a) { a.x = f; }
inline void from_float(float f, BFloat16& a) {
  uint32_t bits = __builtin_bit_cast(uint32_t, f);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  a.bits =
      static_cast<uint16_t>(is_nan ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void from_float(float f, Float16& a) {
  uint32_t bits = __builtin_bit_cast(uint32_t, f);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    a.bits = static_cast<uint16_t>(sign | 0x7e00);
  } else if (magnitude >= 0x477ff000) {  // rounds to 65536 or more
    a.bits = static_cast<uint16_t>(sign | 0x7c00);
  } else if (magnitude < 0x38800000) {  // subnormal: let the float adder round at 2^-24
    float abs_value = __builtin_bit_cast(float, magnitude);
    abs_value += 0.5f;
    bits = __builtin_bit_cast(uint32_t, abs_value);
    a.bits = static_cast<uint16_t>(sign | (bits - 0x3f000000));
  } else {
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    a.bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
  }
}
// Saturates at +-448, the largest finite value.
inline void from_float(float f, Float8E4M3& a) {
  uint32_t bits = __builtin_bit_cast(uint32_t, f);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    a.bits = static_cast<uint8_t>(sign | 0x7f);
  } else if (magnitude >= 0x43e00000) {  // 448
    a.bits = static_cast<uint8_t>(sign | 0x7e);
  } else if (magnitude < 0x3c800000) {  // below 2^-6: let the float adder round at 2^-9
    float abs_value = __builtin_bit_cast(float, magnitude);
    abs_value += 16384.0f;
    bits = __builtin_bit_cast(uint32_t, abs_value);
    a.bits = static_cast<uint8_t>(sign | (bits - 0x46800000));
  } else {
    const uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
    a.bits = static_cast<uint8_t>(sign | ((rounded - 0x3c000000) >> 20));
  }
}

inline Vec load(const Float32* p) { return load(&p->x); }
template <class T>
inline Vec load(const T* p) {
  float lanes[Vec::kLanes];
  for (int i = 0; i < Vec::kLanes; ++i) lanes[i] = to_float(p[i]);
  return load(lanes);
}
#if defined(__AVX2__)
inline Vec load(const BFloat16* p) { return load_bf16(&p->bits); }
inline Vec load(const Float16* p) { return load_fp16(&p->bits); }
#endif

// The first `count` < kLanes elements, zeros after.
template <class T>
inline Vec load_partial(const T* p, int count) {
  float lanes[Vec::kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = to_float(p[i]);
  return load(lanes);
}

// dst[0 .. padded) = src[0 .. size) * scale, zeros after; padded is a multiple of kLanes.
template <class T>
inline void load_row(float* dst, const T* src, int size, int padded, float scale) {
  const Vec factor = broadcast(scale);
  for (int i = 0; i < padded; i += Vec::kLanes) {
    const int left = size - i;
    store(dst + i, (left >= Vec::kLanes ? load(src + i) : load_partial(src + i, left)) * factor);
  }
}

inline void store(Float32* p, Vec a) { store(&p->x, a); }
template <class T>
inline void store(T* p, Vec a) {
  float lanes[Vec::kLanes];
  store(lanes, a);
  for (int i = 0; i < Vec::kLanes; ++i) from_float(lanes[i], p[i]);
}
#if defined(__AVX2__)
inline void store(BFloat16* p, Vec a) { store_bf16(&p->bits, a); }
inline void store(Float16* p, Vec a) { store_fp16(&p->bits, a); }
#endif

// dst[0 .. size) = src * factor; src is padded to a multiple of kLanes.
template <class T>
inline void store_row(T* dst, const float* src, int size, float factor) {
  const Vec scale = broadcast(factor);
  int i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) store(dst + i, load(src + i) * scale);
  for (; i < size; ++i) from_float(src[i] * factor, dst[i]);
}

}  // namespace treeattn::cpu::TREEATTN_ISA
