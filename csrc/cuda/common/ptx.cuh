// SPDX-License-Identifier: Apache-2.0
// Every instruction and memory space that C++ has no word for, sm_80 and newer. Kernels contain no
// asm and no architecture checks: those stay here. csrc/simt/shadow has the twin of this file that
// runs on the host; what is added here is added there.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/common/counter.h"
#include "cuda/common/elements.h"
#include "cuda/common/float8.cuh"

namespace treeattn::cuda {

// The CTA's dynamic shared memory, 128-byte aligned. There is no other shared memory.
__device__ __forceinline__ char* shared_memory() {
  extern __shared__ __align__(128) char treeattn_shared_memory[];
  return treeattn_shared_memory;
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The thread's number, and what follows from it, computed where it stands: the compiler does not
// carry addresses that only a rare phase needs through the loop that needs every register.
__device__ __forceinline__ int thread_here() {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread;
}

// For tests on the host emulator; nothing here.
__device__ __forceinline__ void count(Counter, int64_t = 1) {}

// d += a b for one 16 x 8 tile over 16 steps of k. With g = lane / 4 and t = lane % 4:
//   a[0], a[1]: rows g and g + 8, columns 2t, 2t + 1;   a[2], a[3]: the same rows, columns + 8
//   b[0], b[1]: rows 2t, 2t + 1 and those + 8, column g
//   d[0..1], d[2..3]: rows g and g + 8, columns 2t, 2t + 1
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// Four 8 x 8 matrices of 16-bit elements. Lanes 8i .. 8i + 7 give the rows of matrix i, 16 bytes
// each and aligned to them; r[i] holds row lane / 4, columns 2 (lane % 4) and the next, of matrix
// i.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared_row))
               : "memory");
}

// The same with every matrix transposed: rows 2 (lane % 4) and the next, column lane / 4.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared_row))
               : "memory");
}

// Starts a copy of 16 aligned bytes past the registers and L1; zeros when !valid, and then `global`
// is not read. The bytes may be read after cp_async_wait by the same thread, and by others after a
// barrier that follows it.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most the newest kPending committed groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// To about 2^-11: fine before 16-bit products, not for fp32 results (tanhf is).
__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16 aligned bytes that nobody writes while the kernel runs.
__device__ __forceinline__ uint4 load_16(const void* global) {
  return __ldg(static_cast<const uint4*>(global));
}
// 16 aligned bytes that other CTAs of this launch have written (after an acquire): from L2.
__device__ __forceinline__ uint4 load_16_l2(const void* global) {
  return __ldcg(static_cast<const uint4*>(global));
}
__device__ __forceinline__ void store_16(void* global, uint4 bytes) {
  *static_cast<uint4*>(global) = bytes;
}
// Single values; like the above they are what the emulator's byte counters see.
template <class T>
__device__ __forceinline__ T load_global(const T* global) {
  return *global;
}
template <class T>
__device__ __forceinline__ void store_global(T* global, std::type_identity_t<T> value) {
  *global = value;
}

__device__ __forceinline__ int load_acquire(const int* global) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(global))
               : "memory");
  return value;
}
// What this thread wrote, and what it has seen of others, is seen by whoever acquires the value.
__device__ __forceinline__ void store_release(int* global, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
               "r"(value)
               : "memory");
}
// Waits for a CTA that is sure to run, and acquires what it released. The emulator runs one CTA
// after the other: there only a CTA that has ended can have done what this one waits for.
__device__ __forceinline__ void wait_until_equal(const int* global, int value) {
  constexpr unsigned kNanoseconds = 64;
  while (load_acquire(global) != value) __nanosleep(kNanoseconds);
}
// Returns the value before. What this thread wrote is seen by whoever adds later, and the reverse.
__device__ __forceinline__ int fetch_add_acq_rel(int* global, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(global)), "r"(value)
               : "memory");
  return before;
}

// Two floats to two 16-bit floats, `lo` in the low half; round to nearest even.
__device__ __forceinline__ uint32_t pack_bf16x2(float lo, float hi) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
  return bits;
}
__device__ __forceinline__ uint32_t pack_half2(float lo, float hi) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(hi), "f"(lo));
  return bits;
}

__device__ __forceinline__ float to_float(Float32 a) { return a.value; }
__device__ __forceinline__ float to_float(BFloat16 a) {
  return __uint_as_float(uint32_t{a.bits} << 16);
}
__device__ __forceinline__ float to_float(Half a) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(a.bits));
  return value;
}
// Two e4m3 to two halves, exactly.
__device__ __forceinline__ uint32_t e4m3x2_to_half2(uint16_t pair) {
#if __CUDA_ARCH__ >= 890
  uint32_t bits;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(bits) : "h"(pair));
  return bits;
#else
  return half_by_hand(static_cast<uint8_t>(pair)) |
         uint32_t{half_by_hand(static_cast<uint8_t>(pair >> 8))} << 16;
#endif
}
__device__ __forceinline__ float to_float(Float8E4M3 a) {
  return to_float(Half{static_cast<uint16_t>(e4m3x2_to_half2(a.bits))});
}

// Round to nearest even; fp8 saturates at +-448.
template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, Float32>) {
    return {value};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {static_cast<uint16_t>(pack_bf16x2(value, 0.0f))};
  } else if constexpr (std::is_same_v<T, Half>) {
    return {static_cast<uint16_t>(pack_half2(value, 0.0f))};
  } else {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return {static_cast<uint8_t>(pair)};
#else
    return {e4m3_by_hand(value)};
#endif
  }
}

}  // namespace treeattn::cuda
