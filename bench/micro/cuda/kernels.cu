// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/elements.h"
#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "micro/cuda/kernels.h"

namespace treeattn::micro {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__global__ void nothing_kernel() {}

// One thread: vectors kThreads apart, kUnroll of them on the way at once.
constexpr int kUnroll = 4;
__global__ void copy_kernel(uint4* to, const uint4* from, int64_t num_vecs) {
  const int64_t step = int64_t{kThreads} * kUnroll;
  for (int64_t start = static_cast<int64_t>(blockIdx.x) * step; start < num_vecs;
       start += static_cast<int64_t>(gridDim.x) * step) {
    uint4 vecs[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t at = start + i * kThreads + static_cast<int>(threadIdx.x);
      if (at < num_vecs) vecs[i] = cuda::load_16(from + at);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t at = start + i * kThreads + static_cast<int>(threadIdx.x);
      if (at < num_vecs) cuda::store_16(to + at, vecs[i]);
    }
  }
}

// A product waits for the one before it into the same registers; this many do not.
constexpr int kChains = 8;
constexpr int kCtasPerSm = 2;
constexpr double kMmaFlops = 2.0 * 16 * 8 * 16;

__global__ void mma_kernel(float* sums, int rounds) {
  float d[kChains][4] = {};
  // Small numbers of every sign and size: zeros would cost less power than a real product.
  const uint32_t bits = 0x3c003c00u + (threadIdx.x * 2654435761u & 0x80ff80ffu);
  const uint32_t a[4] = {bits, bits ^ 0x80000000u, bits ^ 0x00118000u, bits ^ 0x00230007u};
  const uint32_t b[2] = {bits ^ 0x00310013u, bits ^ 0x80050042u};
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) cuda::mma_m16n8k16<cuda::BFloat16>(d[i], a, b);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  if (sum == 12345.678f) *sums = sum;  // never: keeps the products alive
}

// Splitmix64 of a counter, as common/random.h: the same numbers whatever the grid.
__device__ uint64_t hash(uint64_t i) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

template <class T>
__global__ void fill_kernel(T* data, int64_t count, float scale, uint64_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
       i < count; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const uint64_t b = hash(seed + static_cast<uint64_t>(i));
    const int sum =
        static_cast<int>((b & 65535) + (b >> 16 & 65535) + (b >> 32 & 65535) + (b >> 48));
    const float normal = static_cast<float>(sum - 2 * 65535) * (1.7320508f / 65536.0f);
    cuda::store_global(data + i, cuda::from_float<T>(scale * normal));
  }
}

// One thread per row: two ranks may hit one token, and then the higher one stays.
constexpr int kLikely = 64;
template <class T>
__global__ void likely_kernel(T* logits, int64_t num_rows, int vocab_size) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (row >= num_rows) return;
  for (int rank = kLikely; rank > 0; --rank) {
    const uint64_t token =
        (hash(static_cast<uint64_t>(row * kLikely + rank)) >> 32) * vocab_size >> 32;
    const float height = 16.0f - 1.3862944f * cuda::log2_approx(static_cast<float>(rank));
    cuda::store_global(logits + row * vocab_size + static_cast<int64_t>(token),
                       cuda::from_float<T>(height));
  }
}

unsigned ctas_for(int64_t count) {
  constexpr int64_t kMost = 1 << 16;  // threads take more than one beyond that
  const int64_t ctas = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(ctas < kMost ? ctas : kMost);
}

}  // namespace

void launch_nothing(cudaStream_t stream) { cuda::launch(nothing_kernel, 1, 32, 0, stream); }

void copy_bytes(void* to, const void* from, int64_t num_bytes, int num_sms, cudaStream_t stream) {
  cuda::launch(copy_kernel, static_cast<unsigned>(8 * num_sms), kThreads, 0, stream,
               static_cast<uint4*>(to), static_cast<const uint4*>(from), num_bytes / 16);
}

void spend_mma(float* sums, int rounds, int num_sms, cudaStream_t stream) {
  cuda::launch(mma_kernel, static_cast<unsigned>(kCtasPerSm * num_sms), kThreads, 0, stream, sums,
               rounds);
}

double spent_flops(int rounds, int num_sms) {
  return kMmaFlops * kChains * rounds * kWarps * kCtasPerSm * num_sms;
}

void fill_normal(void* data, DType dtype, int64_t count, float scale, uint64_t seed,
                 cudaStream_t stream) {
  cuda::with_float_type(dtype, [&]<class T>(T) {
    cuda::launch(fill_kernel<T>, ctas_for(count), kThreads, 0, stream, static_cast<T*>(data), count,
                 scale, seed);
  });
}

void add_likely_tokens(void* logits, DType dtype, int64_t num_rows, int vocab_size,
                       cudaStream_t stream) {
  cuda::with_float_type(dtype, [&]<class T>(T) {
    cuda::launch(likely_kernel<T>, ctas_for(num_rows), kThreads, 0, stream, static_cast<T*>(logits),
                 num_rows, vocab_size);
  });
}

}  // namespace treeattn::micro
