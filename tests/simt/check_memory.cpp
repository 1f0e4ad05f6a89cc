// SPDX-License-Identifier: Apache-2.0
#include <climits>
#include <numeric>

#include "check.h"

namespace checks {
namespace {

__global__ void unwritten_kernel(uint32_t* out) {
  uint32_t* shared = reinterpret_cast<uint32_t*>(shared_memory());
  out[blockIdx.x * blockDim.x + threadIdx.x] = shared[threadIdx.x];
  shared[threadIdx.x] = 7;  // the next CTA must not see it
}

void shared_memory_starts_as_nan() {
  std::vector<uint32_t> out(4 * 32);
  launch(unwritten_kernel, 4, 32, 32 * 4, nullptr, out.data());
  for (uint32_t word : out) expect_equal(word, kPoison, "shared word");
}

// Copies two rows in two groups and a zero in a third that is not committed; looks at all three
// before and after each wait.
__global__ void async_kernel(const uint32_t* rows, uint32_t* seen) {
  char* shared = shared_memory();
  const uint32_t* words = reinterpret_cast<const uint32_t*>(shared);
  int step = 0;
  const auto look = [&] {
    for (int i = 0; i < 3; ++i) seen[step * 3 + i] = words[i * 4];
    ++step;
  };
  for (int i = 0; i < 12; ++i) reinterpret_cast<uint32_t*>(shared)[i] = 5;
  look();
  cp_async_16(shared, rows, true);
  cp_async_commit();
  cp_async_16(shared + 16, rows + 4, true);
  cp_async_commit();
  cp_async_16(shared + 32, nullptr, false);
  look();
  cp_async_wait<2>();
  look();
  cp_async_wait<1>();
  look();
  cp_async_wait<0>();
  look();
  cp_async_commit();
  cp_async_wait<0>();
  look();
}

void async_copies_land_at_their_wait() {
  alignas(16) uint32_t rows[8];
  std::iota(rows, rows + 8, 100u);
  std::vector<uint32_t> seen(18);
  launch(async_kernel, 1, 1, 48, nullptr, static_cast<const uint32_t*>(rows), seen.data());
  const std::vector<uint32_t> wanted = {5,   5,   5,    // nothing issued
                                        ~0u, ~0u, ~0u,  // issued
                                        ~0u, ~0u, ~0u,  // wait<2>: two groups may be under way
                                        100, ~0u, ~0u,  // wait<1>
                                        100, 104, ~0u,  // wait<0>: the third is in no group yet
                                        100, 104, 0};
  for (size_t i = 0; i < wanted.size(); ++i) {
    expect_equal(seen[i], wanted[i],
                 "word " + std::to_string(i % 3) + " at look " + std::to_string(i / 3));
  }
}

__global__ void pass_on_kernel(const uint32_t* rows, uint32_t* out, bool wait) {
  char* shared = shared_memory();
  cp_async_16(shared + threadIdx.x * 16, rows + threadIdx.x * 4, true);
  cp_async_commit();
  if (wait) cp_async_wait<0>();
  __syncthreads();
  const unsigned other = (threadIdx.x + 40) % blockDim.x;
  out[threadIdx.x] = reinterpret_cast<uint32_t*>(shared)[other * 4 + 3];
}

void async_copies_are_passed_on() {
  std::vector<uint4> rows(64);
  for (unsigned i = 0; i < 64; ++i) rows[i] = make_uint4(0, 0, 0, i);
  const auto* words = reinterpret_cast<const uint32_t*>(rows.data());
  std::vector<uint32_t> out(64);
  launch(pass_on_kernel, 1, 64, 64 * 16, nullptr, words, out.data(), true);
  for (unsigned i = 0; i < 64; ++i) expect_equal(out[i], (i + 40) % 64, "row");
  launch(pass_on_kernel, 1, 64, 64 * 16, nullptr, words, out.data(), false);
  for (uint32_t word : out) expect_equal(word, kPoison, "row without a wait");
}

__global__ void load_kernel(const char* from) { load_16(from); }
__global__ void store_kernel(char* to) { store_16(to, make_uint4(0, 0, 0, 0)); }
__global__ void load_shared_kernel() { load_16(shared_memory()); }
__global__ void copy_kernel(int offset, const char* from, bool to_shared) {
  char* to = to_shared ? shared_memory() + offset : const_cast<char*>(from);
  cp_async_16(to, from, true);
}

void wide_accesses_are_checked() {
  alignas(16) char memory[64] = {};
  const char* const from = memory;
  expect_fault([&] { launch(load_kernel, 1, 1, 0, nullptr, from + 8); },
               {"load_16: must be aligned to 16 bytes, is 8 past", "load_kernel", "check_memory"});
  expect_fault([&] { launch(store_kernel, 1, 1, 0, nullptr, memory + 1); },
               {"store_16: must be aligned", "store_kernel"});
  expect_fault([&] { launch(load_shared_kernel, 1, 1, 64, nullptr); },
               {"load_16: must be in global memory"});
  expect_fault([&] { launch(copy_kernel, 1, 1, 64, nullptr, 4, from, true); },
               {"cp_async_16: shared: must be aligned to 16 bytes, is 4 past", "copy_kernel"});
  expect_fault([&] { launch(copy_kernel, 1, 1, 64, nullptr, 64, from, true); },
               {"cp_async_16: not in shared memory"});
  expect_fault([&] { launch(copy_kernel, 1, 1, 64, nullptr, 0, from, false); },
               {"cp_async_16: not in shared memory"});
  expect_fault([&] { launch(copy_kernel, 1, 1, 64, nullptr, 0, from + 2, true); },
               {"cp_async_16: global: must be aligned to 16 bytes, is 2 past"});
}

__global__ void overrun_kernel(int bytes) { shared_memory()[bytes] = 1; }

// For a build with AddressSanitizer, which must end the process.
void overrun_of_shared_memory() {
  launch(overrun_kernel, 1, 1, 100, nullptr, 99);
  launch(overrun_kernel, 1, 1, 100, nullptr, 100);
}

__global__ void increment_kernel(int* number) { ++*number; }

// For a build with UBSan, which must end the process.
void signed_overflow() {
  int number = INT_MAX;
  launch(increment_kernel, 1, 1, 0, nullptr, &number);
}

}  // namespace

const std::vector<Check> kMemory = {
    {"shared_memory_starts_as_nan", shared_memory_starts_as_nan},
    {"async_copies_land_at_their_wait", async_copies_land_at_their_wait},
    {"async_copies_are_passed_on", async_copies_are_passed_on},
    {"wide_accesses_are_checked", wide_accesses_are_checked},
    {"overrun_of_shared_memory", overrun_of_shared_memory},
    {"signed_overflow", signed_overflow},
};

}  // namespace checks
