// SPDX-License-Identifier: Apache-2.0
// A machine that runs CUDA kernels on the host: one fiber per CUDA thread, one CTA after the other.
//
// It is strict where a GPU is lenient. A collective or barrier completes only when every thread it
// names has come to the same place; if that cannot happen any more, the launch fails and says who
// waits where. Which thread runs next is the caller's choice (TREEATTN_SIMT_ORDER=forward, reverse
// or random:SEED, read at each launch), and a right kernel gives the same bits in any order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "cuda/common/counter.h"
#include "simt/vector_types.h"

namespace treeattn::simt {

using Site = std::source_location;

inline constexpr int kWarpSize = 32;
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxWarps = kMaxThreads / kWarpSize;

// What the machine saw since the counters were last cleared; all threads of all launches added up.
struct Counters {
  int64_t launches = 0;
  int64_t ctas = 0;
  int64_t global_bytes_read = 0;     // load_16, load_global, cp_async_16
  int64_t global_bytes_written = 0;  // store_16, store_global
  int64_t atomics = 0;
  int64_t barriers = 0;            // __syncthreads of a CTA
  int64_t mma = 0;                 // m16n8k16 of a warp
  int64_t ldmatrix = 0;            // of a warp
  int64_t ldmatrix_conflicts = 0;  // passes over shared memory beyond the four that x4 needs
  std::array<int64_t, static_cast<int>(cuda::Counter::kNumCounters)> named{};
};
inline constexpr const char* kMachineCounterNames[] = {
    "launches", "ctas", "global_bytes_read", "global_bytes_written", "atomics",
    "barriers", "mma",  "ldmatrix",          "ldmatrix_conflicts"};
inline constexpr int kNumMachineCounters = 9;
static_assert(sizeof(Counters) ==
              sizeof(int64_t) * (kNumMachineCounters + Counters{}.named.size()));

extern Counters counters;

struct Launch {
  uint3 grid;
  uint3 block;
  size_t shared_bytes;
  void (*invoke)(void* call);  // runs the kernel for one thread
  void* call;
};

// Runs a launch to its end; false when it broke a rule, which fault() then puts into words.
bool run(const Launch& launch);
const std::string& fault();

// ---- For the thread that runs now ----

int lane();

// Ends the launch with an error of this thread.
[[noreturn]] void fail(const Site& site, const std::string& message);

// Waits for all lanes of `mask` to come here with the same mask; then `complete` sees what each
// lane brought (nullptr for lanes outside the mask), and all go on.
using Complete = void (*)(void* const* brought, uint32_t mask, const Site& site);
void meet(const char* what, uint32_t mask, Complete complete, void* brought, const Site& site);

void sync_threads(const Site& site);

// A place where a random order may let others run.
void preempt();

char* shared_memory();
// [pointer, pointer + bytes) lies in the CTA's shared memory / touches none of it.
bool in_shared(const void* pointer, size_t bytes);
bool outside_shared(const void* pointer, size_t bytes);

// cp.async: `global` is nullptr for zeros. From issue to landing the destination holds NaN.
void async_copy(char* shared, const char* global);
void async_commit();
void async_wait(int pending);

}  // namespace treeattn::simt
