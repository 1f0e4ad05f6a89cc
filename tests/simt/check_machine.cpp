// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "check.h"
#include "simt/machine.h"

namespace checks {
namespace {

__global__ void arrival_kernel(int* arrivals, int* next) {
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  arrivals[(*next)++] = thread;  // plain: one host thread runs all
  __syncthreads();
  arrivals[(*next)++] = thread;
}

std::vector<int> arrivals(const char* order, int num_ctas, int num_threads) {
  setenv("TREEATTN_SIMT_ORDER", order, 1);
  std::vector<int> seen(static_cast<size_t>(num_ctas * num_threads * 2), -1);
  int next = 0;
  launch(arrival_kernel, static_cast<unsigned>(num_ctas), static_cast<unsigned>(num_threads), 0,
         nullptr, seen.data(), &next);
  return seen;
}

void orders() {
  constexpr int kCtas = 5, kThreads = 70;
  std::vector<int> forward;
  for (int cta = 0; cta < kCtas; ++cta) {
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < kThreads; ++i) forward.push_back(cta * kThreads + i);
    }
  }
  expect(arrivals("forward", kCtas, kThreads) == forward, "forward is not in order");
  std::vector<int> reverse(forward.rbegin(), forward.rend());
  expect(arrivals("reverse", kCtas, kThreads) == reverse, "reverse is not reversed");
  const std::vector<int> random = arrivals("random:5", kCtas, kThreads);
  expect(random == arrivals("random:5", kCtas, kThreads), "equal seeds gave different orders");
  expect(random != arrivals("random:6", kCtas, kThreads), "different seeds gave one order");
  expect(random != forward && random != reverse, "random is not random");
  std::vector<int> sorted = random, all = forward;
  std::sort(sorted.begin(), sorted.end());
  std::sort(all.begin(), all.end());
  expect(sorted == all, "random left threads out");
}

void bad_orders() {
  for (const char* order : {"", "backward", "random", "random:", "random:x", "random:1x"}) {
    expect_fault([&] { arrivals(order, 1, 1); },
                 {"TREEATTN_SIMT_ORDER must be forward, reverse or random:SEED, got"});
  }
}

__global__ void index_kernel(int* out) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  __syncthreads();  // everybody's own indices are there after a switch
  out[cta * (blockDim.x * blockDim.y * blockDim.z) + thread] =
      static_cast<int>(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z +
                       1000 * (blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z));
}

void indices() {
  std::vector<int> out(3 * 2 * 4 * 5 * 3 * 2, -1);
  launch(index_kernel, dim3(3, 2, 4), dim3(5, 3, 2), 0, nullptr, out.data());
  size_t i = 0;
  for (int bz = 0; bz < 4; ++bz)
    for (int by = 0; by < 2; ++by)
      for (int bx = 0; bx < 3; ++bx)
        for (int z = 0; z < 2; ++z)
          for (int y = 0; y < 3; ++y)
            for (int x = 0; x < 5; ++x) {
              expect_equal(out[i++], x + 10 * y + 100 * z + 1000 * (bx + 10 * by + 100 * bz),
                           "index");
            }
}

__global__ void counted_kernel(const char* from, char* to) {
  const unsigned i = threadIdx.x;
  store_16(to + i * 16, load_16(from + i * 16));
  cp_async_16(shared_memory() + i * 16, from + i * 16, i % 2 == 0);
  store_global(reinterpret_cast<float*>(to) + i, load_global(reinterpret_cast<const float*>(from)));
  __syncthreads();
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  for (int k = 0; k < 3; ++k) mma_m16n8k16<Half>(d, a, b);
  __syncthreads();
  if (i == 0) count(Counter::kTiles, 5);
  if (i == 1) count(Counter::kTiles);
}

void counters() {
  std::vector<uint4> from(64), to(64);
  treeattn::simt::counters = {};
  for (int i = 0; i < 2; ++i) {
    launch(counted_kernel, 1, 64, 64 * 16, nullptr, reinterpret_cast<const char*>(from.data()),
           reinterpret_cast<char*>(to.data()));
  }
  const treeattn::simt::Counters seen = treeattn::simt::counters;
  expect_equal(seen.launches, 2, "launches");
  expect_equal(seen.ctas, 2, "CTAs");
  expect_equal(seen.global_bytes_read, 2 * (64 * 16 + 32 * 16 + 64 * 4), "bytes read");
  expect_equal(seen.global_bytes_written, 2 * (64 * 16 + 64 * 4), "bytes written");
  expect_equal(seen.barriers, 2 * 2, "barriers");
  expect_equal(seen.mma, 2 * 2 * 3, "mma");
  expect_equal(seen.named[static_cast<int>(Counter::kTiles)], 2 * 6, "tiles");
}

__global__ void nothing_kernel() {}
struct Params {
  char bytes[32760];
};
__global__ void params_kernel(Params params, int last, int* seen) {
  *seen = params.bytes[0] + last;
}
struct LargestParams {
  char bytes[32764 - 16];
};
__global__ void most_params_kernel(LargestParams params, int last, int* seen) {
  *seen = params.bytes[0] + last;
}
__global__ void big_kernel(char* seen) { *seen = shared_memory()[0]; }

void launch_limits() {
  char seen = 0;
  launch(nothing_kernel, 0, 32, 0, nullptr);  // an empty grid is no launch
  launch(big_kernel, 1, 1024, 163 * 1024, nullptr, &seen);
  expect_equal(+seen, -1, "first byte of a large shared memory");
  int sum = 0;  // parameters: 32,748 and 4 bytes, and a pointer at the next multiple of 8
  launch(most_params_kernel, 1, 1, 0, nullptr, LargestParams{{3}}, 4, &sum);
  expect_equal(sum, 7, "sum of the first and the last parameter");
  expect_fault([&] { launch(params_kernel, 1, 1, 0, nullptr, Params{}, 4, &sum); },
               {"invalid argument", "launch_limits"});
  expect_fault([] { launch(nothing_kernel, 1, 1025, 0, nullptr); },
               {"invalid configuration argument", "check_machine.cpp:"});
  expect_fault([] { launch(nothing_kernel, dim3(1, 65536), 1, 0, nullptr); },
               {"invalid configuration argument"});
  expect_fault([&] { launch(big_kernel, 1, 1, 164 * 1024, nullptr, &seen); },
               {"invalid argument", "launch_limits"});
}

__global__ void deep_kernel(int* out, int depth) {
  int sum = 0;
  const std::function<int(int)> go = [&](int level) -> int {
    volatile int frame[64] = {};
    frame[level % 64] = level;
    __syncthreads();
    return level == 0 ? 0 : go(level - 1) + frame[level % 64];
  };
  sum = go(depth);
  out[threadIdx.x] = sum;
}

// Frames of several hundred bytes live on through many switches, in a CTA of the largest size.
void stacks_are_apart() {
  std::vector<int> out(1024);
  launch(deep_kernel, 1, 1024, 0, nullptr, out.data(), 40);
  for (int sum : out) expect_equal(sum, 820, "sum");
}

// After a launch that failed, the next one is as good as new.
__global__ void fails_kernel() {
  if (threadIdx.x == 5) treeattn::simt::fail(treeattn::simt::Site::current(), "on purpose");
  __syncthreads();
}
void recovery() {
  for (int i = 0; i < 3; ++i) {
    expect_fault([] { launch(fails_kernel, 2, 64, 0, nullptr); }, {"on purpose", "(5, 0, 0)"});
    stacks_are_apart();
  }
}

}  // namespace

const std::vector<Check> kMachine = {
    {"orders", orders},
    {"bad_orders", bad_orders},
    {"indices", indices},
    {"counters", counters},
    {"launch_limits", launch_limits},
    {"stacks_are_apart", stacks_are_apart},
    {"recovery", recovery},
};

}  // namespace checks
