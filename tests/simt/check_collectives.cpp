// SPDX-License-Identifier: Apache-2.0
#include "check.h"

namespace checks {
namespace {

constexpr unsigned kAll = 0xffffffff;

__global__ void shuffle_kernel(int* out) {
  const int lane = threadIdx.x % 32;
  int* mine = out + threadIdx.x * 6;
  mine[0] = __shfl_sync(kAll, lane * 10, 31 - lane);
  mine[1] = __shfl_xor_sync(kAll, lane * 10, 5);
  mine[2] = __shfl_down_sync(kAll, lane * 10, 3, 8);
  mine[3] = __shfl_up_sync(kAll, lane * 10, 3, 8);
  mine[4] = __shfl_sync(kAll, lane * 10, 2, 8);
  mine[5] = static_cast<int>(__shfl_xor_sync(kAll, int64_t{1} << 40 | lane, 1) & 31);
}

void shuffles() {
  std::vector<int> out(64 * 6);
  launch(shuffle_kernel, 1, 64, 0, nullptr, out.data());
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32, place = lane % 8;
    const int* mine = &out[i * 6];
    expect_equal(mine[0], (31 - lane) * 10, "shfl");
    expect_equal(mine[1], (lane ^ 5) * 10, "shfl_xor");
    expect_equal(mine[2], (place + 3 < 8 ? lane + 3 : lane) * 10, "shfl_down in eights");
    expect_equal(mine[3], (place >= 3 ? lane - 3 : lane) * 10, "shfl_up in eights");
    expect_equal(mine[4], (lane - place + 2) * 10, "shfl in eights");
    expect_equal(mine[5], lane ^ 1, "shfl of 8 bytes");
  }
}

__global__ void vote_kernel(unsigned* out) {
  const int lane = threadIdx.x;
  unsigned* mine = out + lane * 5;
  mine[0] = __ballot_sync(kAll, lane % 3 == 0);
  mine[1] = static_cast<unsigned>(__any_sync(kAll, lane == 31));
  mine[2] = static_cast<unsigned>(__all_sync(kAll, lane != 7));
  mine[3] = static_cast<unsigned>(__all_sync(kAll, 2 + lane));
  mine[4] = __match_any_sync(kAll, lane / 8);
}

void votes() {
  std::vector<unsigned> out(32 * 5);
  launch(vote_kernel, 1, 32, 0, nullptr, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    const unsigned* mine = &out[lane * 5];
    expect_equal(mine[0], 0x49249249u, "ballot of every third");
    expect_equal(mine[1], 1u, "any");
    expect_equal(mine[2], 0u, "all but one");
    expect_equal(mine[3], 1u, "all");
    expect_equal(mine[4], 0xffu << lane / 8 * 8, "match_any");
  }
}

// The halves of a warp go their own ways, one through three collectives, one through two.
__global__ void halves_kernel(int* out) {
  const int lane = threadIdx.x;
  int value = lane;
  if (lane < 16) {
    for (int i = 0; i < 3; ++i) value += __shfl_xor_sync(0x0000ffff, value, 1);
  } else {
    for (int i = 0; i < 2; ++i) value += __shfl_xor_sync(0xffff0000, value, 2);
  }
  __syncwarp();
  out[lane] = __shfl_sync(kAll, value, lane ^ 16);
}

void partial_masks() {
  std::vector<int> out(32);
  launch(halves_kernel, 1, 32, 0, nullptr, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    const int from = lane ^ 16;
    const int sum = from + (from ^ (from < 16 ? 1 : 2));
    expect_equal(out[lane], sum * (from < 16 ? 4 : 2), "value of the other half");
  }
}

__global__ void neighbour_kernel(int* out, bool wait) {
  int* shared = reinterpret_cast<int*>(shared_memory());
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (wait) __syncthreads();
  out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

void barrier() {
  std::vector<int> out(96);
  launch(neighbour_kernel, 1, 96, 96 * 4, nullptr, out.data(), true);
  for (int i = 0; i < 96; ++i) expect_equal(out[i], (i + 1) % 96, "neighbour");
}

// Whichever thread goes first, a missing barrier leaves a NaN pattern somewhere.
void missing_barrier_shows() {
  std::vector<int> out(96);
  launch(neighbour_kernel, 1, 96, 96 * 4, nullptr, out.data(), false);
  int unwritten = 0;
  for (int value : out) unwritten += value == -1;
  expect(unwritten > 0, "every value was there without a barrier");
}

__global__ void early_exit_kernel() {
  if (threadIdx.x >= 7) return;
  __syncthreads();
}
__global__ void two_places_kernel() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void missing_lane_kernel(int* out) {
  if (threadIdx.x != 3) out[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
}
__global__ void short_warp_kernel() { __syncwarp(); }

void divergence() {
  std::vector<int> out(64);
  expect_fault([] { launch(early_exit_kernel, dim3(2, 3), 64, 0, nullptr); },
               {"7 threads from (0, 0, 0) on wait in __syncthreads", "early_exit_kernel",
                "check_collectives.cpp:", "57 threads from (7, 0, 0) on have ended", "CTA ("});
  expect_fault([] { launch(two_places_kernel, 1, 64, 0, nullptr); },
               {"32 threads from (0, 0, 0) on wait in __syncthreads", "two_places_kernel",
                "32 threads from (32, 0, 0) on wait in __syncthreads"});
  expect_fault([&] { launch(missing_lane_kernel, 1, 64, 0, nullptr, out.data()); },
               {"__shfl_xor_sync", "missing_lane_kernel", "have ended"});
  expect_fault([] { launch(short_warp_kernel, 1, 48, 0, nullptr); },
               {"16 threads from (32, 0, 0) on wait in __syncwarp", "short_warp_kernel"});
}

__global__ void outsider_kernel() { __syncwarp(0x0000fffe); }
__global__ void from_outside_kernel(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffff, 1, 20);
}

void masks_are_checked() {
  std::vector<int> out(32);
  expect_fault([] { launch(outsider_kernel, 1, 16, 0, nullptr); },
               {"the mask leaves out the caller", "thread (0, 0, 0)", "outsider_kernel"});
  expect_fault([&] { launch(from_outside_kernel, 1, 32, 0, nullptr, out.data()); },
               {"lane 20 is not in the mask", "from_outside_kernel"});
}

__global__ void atomics_kernel(int* sum, int* most, unsigned* bits, float* floats, int* taken) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(sum, i);
  atomicMax(most, i);
  atomicOr(bits, 1u << i % 32);
  atomicAdd(floats, 0.5f);
  if (atomicCAS(taken, -1, i) == -1) atomicExch(taken + 1, i);
}

void atomics() {
  int sum = 0, most = 0, taken[2] = {-1, -1};
  unsigned bits = 0;
  float floats = 0;
  launch(atomics_kernel, 4, 64, 0, nullptr, &sum, &most, &bits, &floats, taken);
  expect_equal(sum, 255 * 128, "sum");
  expect_equal(most, 255, "maximum");
  expect_equal(bits, kAll, "bits");
  expect_equal(floats, 128.0f, "float sum");
  expect(taken[0] >= 0 && taken[0] == taken[1], "one thread took the place");
}

// The last of the CTAs to arrive adds up what all have left.
__global__ void last_arriver_kernel(int* partial, int* arrived, int* total) {
  partial[blockIdx.x] = static_cast<int>(blockIdx.x) + 1;
  if (fetch_add_acq_rel(arrived, 1) != static_cast<int>(gridDim.x) - 1) return;
  for (unsigned i = 0; i < gridDim.x; ++i) *total += load_global(partial + i);
}

void last_arriver() {
  std::vector<int> partial(20, -1000);
  int arrived = 0, total = 0;
  launch(last_arriver_kernel, 20, 1, 0, nullptr, partial.data(), &arrived, &total);
  expect_equal(total, 210, "total");
}

}  // namespace

const std::vector<Check> kCollectives = {
    {"shuffles", shuffles},
    {"votes", votes},
    {"partial_masks", partial_masks},
    {"barrier", barrier},
    {"missing_barrier_shows", missing_barrier_shows},
    {"divergence", divergence},
    {"masks_are_checked", masks_are_checked},
    {"atomics", atomics},
    {"last_arriver", last_arriver},
};

}  // namespace checks
