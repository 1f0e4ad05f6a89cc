// SPDX-License-Identifier: Apache-2.0
// A logit as a key that sorts like it, and as a weight in integer units.
#pragma once

#include "cuda/accept_path/cta_scan.cuh"
#include "cuda/common/elements.h"

namespace treeattn::cuda {

inline constexpr float kInfinity = __builtin_huge_valf();

// Unsigned integers in the order of the floats, NaN aside; -0 and +0 are one key. kDropped low bits
// are the same for all values of the type that the logits were widened from.
template <class T>
inline constexpr int kDropped = 0;
template <>
inline constexpr int kDropped<BFloat16> = 16;
template <>
inline constexpr int kDropped<Half> = 13;

template <class T>
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits ^ (bits >> 31 ? ~0u : 0x80000000)) >> kDropped<T>;
}

template <class T>
__device__ __forceinline__ float value_of(uint32_t key) {
  const uint32_t wide = key << kDropped<T>;
  return __uint_as_float(wide >> 31 ? wide ^ 0x80000000 : ~(wide | ((1u << kDropped<T>)-1)));
}

// Weights of the ids of one row: exp((x - max) / temperature), 1 at the maximum.
struct Weigh {
  float max;
  float scale;       // log2(e) / temperature
  float unit_scale;  // units per weight, a power of 2

  // Steps and constants of the CPU's exp2_product, so that both get the same float: exactly 1 at
  // the maximum, 0 below 2^-125, relative error below 2 ulp beyond that of the product.
  __device__ __forceinline__ float operator()(float x) const {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: leaves the integer in the low bits
    const float a = x - max;
    const float shifted = fmaf(a, scale, kRound);
    const float f = fmaf(a, scale, kRound - shifted);
    float e = fmaf(f, 1.326472725e-03f, 9.671512786e-03f);
    e = fmaf(f, e, 5.550733744e-02f);
    e = fmaf(f, e, 2.402224208e-01f);
    e = fmaf(f, e, 6.931469776e-01f);
    e = fmaf(f, e, 1.0f);
    const float weight = __uint_as_float(__float_as_uint(e) + (__float_as_uint(shifted) << 23));
    return shifted >= kRound - 125.0f ? weight : 0.0f;
  }

  // Sums of units are exact, whatever their order: the split of a row over threads, its alignment
  // and the mode of the walk cannot show. A weight loses less than one unit, 2^-44 for any
  // vocabulary of up to 2^18 ids; all that a row can lose is less than one fp32 rounding of its
  // sum.
  __device__ __forceinline__ Units units(float weight) const {
    return static_cast<Units>(weight * unit_scale);
  }
};

// A row of ids that all weigh 1 still sums up to less than 2^63.
__device__ __forceinline__ float unit_scale(int vocab_size) {
  const int id_bits = 32 - __clz(vocab_size);
  const int bits = id_bits <= 18 ? 44 : 62 - id_bits;
  return __uint_as_float(static_cast<uint32_t>(127 + bits) << 23);
}

__device__ __forceinline__ Weigh weigh_row(float max, float temperature, int vocab_size) {
  return {.max = max, .scale = 1.44269504f / temperature, .unit_scale = unit_scale(vocab_size)};
}

}  // namespace treeattn::cuda
