// SPDX-License-Identifier: Apache-2.0
// The twin of csrc/cuda/common/ptx.cuh that runs on the host, where the words are explained.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/common/counter.h"
#include "cuda/common/elements.h"
#include "cuda/common/float8.cuh"
#include "simt/convert.h"
#include "simt/machine.h"
#include "simt/matrix.h"

namespace treeattn::cuda {

using simt::Site;

inline char* shared_memory() { return simt::shared_memory(); }

inline int thread_here() { return static_cast<int>(threadIdx.x); }

inline void count(Counter counter, int64_t amount = 1) {
  simt::counters.named[static_cast<int>(counter)] += amount;
}

template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  const Site& site = Site::current()) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  simt::mma_m16n8k16(d, a, b, std::is_same_v<T, BFloat16>, site);
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void* shared_row,
                        const Site& site = Site::current()) {
  simt::ldmatrix_x4(r, shared_row, false, site);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* shared_row,
                              const Site& site = Site::current()) {
  simt::ldmatrix_x4(r, shared_row, true, site);
}

inline void cp_async_16(void* shared, const void* global, bool valid,
                        const Site& site = Site::current()) {
  simt::check_aligned_16("cp_async_16: shared", shared, site);
  if (!simt::in_shared(shared, 16)) simt::fail(site, "cp_async_16: not in shared memory");
  if (valid) simt::check_global_16("cp_async_16: global", global, site);
  simt::async_copy(static_cast<char*>(shared), valid ? static_cast<const char*>(global) : nullptr);
}
inline void cp_async_commit() { simt::async_commit(); }
template <int kPending>
void cp_async_wait() {
  simt::async_wait(kPending);
}

inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float tanh_approx(float x) { return std::tanh(x); }

inline uint4 load_16(const void* global, const Site& site = Site::current()) {
  simt::check_global_16("load_16", global, site);
  simt::counters.global_bytes_read += 16;
  return *static_cast<const uint4*>(global);
}
inline uint4 load_16_l2(const void* global, const Site& site = Site::current()) {
  return load_16(global, site);
}
inline void store_16(void* global, uint4 bytes, const Site& site = Site::current()) {
  simt::check_global_16("store_16", global, site);
  simt::counters.global_bytes_written += 16;
  *static_cast<uint4*>(global) = bytes;
}
template <class T>
T load_global(const T* global) {
  simt::counters.global_bytes_read += sizeof(T);
  return *global;
}
template <class T>
void store_global(T* global, std::type_identity_t<T> value) {
  simt::counters.global_bytes_written += sizeof(T);
  *global = value;
}

inline int load_acquire(const int* global) {
  simt::preempt();
  return load_global(global);
}
inline void store_release(int* global, int value) {
  simt::preempt();
  store_global(global, value);
}
inline void wait_until_equal(const int* global, int value, const Site& site = Site::current()) {
  const int seen = load_acquire(global);
  if (seen == value) return;
  simt::fail(site, "wait_until_equal: no CTA before this one has made it " + std::to_string(value) +
                       ", it is " + std::to_string(seen));
}
inline int fetch_add_acq_rel(int* global, int value) { return atomicAdd(global, value); }

inline float to_float(Float32 a) { return a.value; }
inline float to_float(BFloat16 a) { return __uint_as_float(uint32_t{a.bits} << 16); }
inline float to_float(Half a) { return simt::half_to_float(a.bits); }
inline uint32_t e4m3x2_to_half2(uint16_t pair) {
  return half_by_hand(static_cast<uint8_t>(pair)) |
         uint32_t{half_by_hand(static_cast<uint8_t>(pair >> 8))} << 16;
}
inline float to_float(Float8E4M3 a) { return to_float(Half{half_by_hand(a.bits)}); }

template <class T>
T from_float(float value) {
  if constexpr (std::is_same_v<T, Float32>) {
    return {value};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {simt::float_to_bf16(value)};
  } else if constexpr (std::is_same_v<T, Half>) {
    return {simt::float_to_half(value)};
  } else {
    return {e4m3_by_hand(value)};
  }
}
inline uint32_t pack_bf16x2(float lo, float hi) {
  return simt::float_to_bf16(lo) | uint32_t{simt::float_to_bf16(hi)} << 16;
}
inline uint32_t pack_half2(float lo, float hi) {
  return simt::float_to_half(lo) | uint32_t{simt::float_to_half(hi)} << 16;
}

}  // namespace treeattn::cuda
