// SPDX-License-Identifier: Apache-2.0
// Pairs of 16-bit floats, and 16 bytes as elements.
#pragma once

#include "cuda/common/ptx.cuh"

namespace treeattn::cuda {

__device__ __forceinline__ float2 unpack_bf16x2(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}
__device__ __forceinline__ float2 unpack_half2(uint32_t pair) {
  return make_float2(to_float(Half{static_cast<uint16_t>(pair)}),
                     to_float(Half{static_cast<uint16_t>(pair >> 16)}));
}

// Two elements of a 16-bit type.
template <class T>
__device__ __forceinline__ uint32_t pack2(float lo, float hi) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  if constexpr (std::is_same_v<T, BFloat16>) {
    return pack_bf16x2(lo, hi);
  } else {
    return pack_half2(lo, hi);
  }
}
template <class T>
__device__ __forceinline__ float2 unpack2(uint32_t pair) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  if constexpr (std::is_same_v<T, BFloat16>) {
    return unpack_bf16x2(pair);
  } else {
    return unpack_half2(pair);
  }
}

// A run of elements that one load or store moves.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T elements[kCount];
};
template <class T>
inline constexpr int kElementsPer16 = 16 / sizeof(T);

// kCount elements at an address aligned to all of them; 16 bytes go by the wide path.
template <class T, int kCount>
__device__ __forceinline__ Pack<T, kCount> load_pack(const T* global) {
  Pack<T, kCount> pack;
  if constexpr (sizeof(pack) == 16) {
    const uint4 bytes = load_16(global);
    __builtin_memcpy(&pack, &bytes, 16);
  } else {
    pack = load_global(reinterpret_cast<const Pack<T, kCount>*>(global));
  }
  return pack;
}
template <class T, int kCount>
__device__ __forceinline__ void store_pack(T* global, const Pack<T, kCount>& pack) {
  if constexpr (sizeof(pack) == 16) {
    uint4 bytes;
    __builtin_memcpy(&bytes, &pack, 16);
    store_16(global, bytes);
  } else {
    store_global(reinterpret_cast<Pack<T, kCount>*>(global), pack);
  }
}

}  // namespace treeattn::cuda
