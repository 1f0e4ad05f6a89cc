// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a CTA of kRowThreads: of integers, which are exact in any order, and of
// doubles, always in one order.
#pragma once

#include "cuda/accept_path/config.h"
#include "cuda/common/ptx.cuh"

namespace treeattn::cuda {

using Units = unsigned long long;

template <class T>
__device__ __forceinline__ T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return a < b ? b : a;
}

__device__ __forceinline__ int lane_of_thread() { return threadIdx.x % kWarpSize; }
__device__ __forceinline__ int warp_of_thread() { return threadIdx.x / kWarpSize; }

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

__device__ __forceinline__ Units warp_max(Units value) {
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    const Units other = __shfl_xor_sync(kAllLanes, value, step);
    value = other > value ? other : value;
  }
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, step);
    value = other > value ? other : value;
  }
  return value;
}

// Sum over lanes 0 .. this one.
template <class T>
__device__ __forceinline__ T warp_prefix(T value) {
#pragma unroll
  for (int step = 1; step < kWarpSize; step *= 2) {
    const T lower = __shfl_up_sync(kAllLanes, value, step);
    if (lane_of_thread() >= step) value += lower;
  }
  return value;
}

struct Prefix {
  Units before;  // of the threads before this one
  Units total;   // of all
};

// Called by all threads; `warp_sums` [kRowWarps] is shared and free again on return.
__device__ __forceinline__ Prefix cta_prefix(Units value, Units* warp_sums) {
  const Units inclusive = warp_prefix(value);
  if (lane_of_thread() == kWarpSize - 1) warp_sums[warp_of_thread()] = inclusive;
  __syncthreads();  // warp_sums are complete
  Prefix prefix{.before = inclusive - value, .total = 0};
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) {
    if (warp < warp_of_thread()) prefix.before += warp_sums[warp];
    prefix.total += warp_sums[warp];
  }
  __syncthreads();  // warp_sums have been read
  return prefix;
}

// Called by all threads, as above; the same bits for all.
__device__ __forceinline__ double cta_sum(double value, Units* warp_sums) {
  double* const sums = reinterpret_cast<double*>(warp_sums);
  value = warp_sum(value);
  if (lane_of_thread() == 0) sums[warp_of_thread()] = value;
  __syncthreads();  // sums are complete
  double total = 0;
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) total += sums[warp];
  __syncthreads();  // sums have been read
  return total;
}

// Called by all threads, as above.
__device__ __forceinline__ Units cta_max(Units value, Units* warp_sums) {
  value = warp_max(value);
  if (lane_of_thread() == 0) warp_sums[warp_of_thread()] = value;
  __syncthreads();  // warp_sums are complete
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) {
    if (warp_sums[warp] > value) value = warp_sums[warp];
  }
  __syncthreads();  // warp_sums have been read
  return value;
}

}  // namespace treeattn::cuda
