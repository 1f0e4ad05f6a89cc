// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "micro/common/elements.h"
#include "micro/common/timing.h"
#include "micro/common/workers.h"

namespace treeattn::micro {

// Bytes per microsecond that `threads` threads read together from a buffer no cache holds.
inline double read_bandwidth(Workers& workers, int threads, const Budget& budget) {
  constexpr int64_t kWords = int64_t{96} << 17;  // 96 MiB
  constexpr int64_t kChunk = 1 << 14;
  const std::vector<uint64_t> buffer(kWords, 1);
  std::vector<uint64_t> sums(threads * 8);  // a cache line each; written so that reads are needed
  const Timing timing = measure(threads, budget, [&] {
    Items chunks(kWords / kChunk);
    workers.run(threads, [&](int thread) {
      uint64_t sum = 0;
      for (int64_t i = chunks.next(); i < kWords / kChunk; i = chunks.next()) {
        for (int64_t k = 0; k < kChunk; ++k) sum += buffer[i * kChunk + k];
      }
      sums[thread * 8] += sum;
    });
  });
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  if (total == 0) return 0;  // never: keeps the sums alive
  return static_cast<double>(kWords) * 8 / timing.median_us;
}

// Microseconds for a contiguous copy of `bytes` bytes, as warm as the budget's repetition makes it.
inline double copy_us(Workers& workers, int threads, const Budget& budget, int64_t bytes) {
  constexpr int64_t kShare = int64_t{256} * 1024;
  // Aligned: some CPUs copy ten times slower between buffers that differ in their low bits.
  const Elements source(DType::kFloat32, bytes / 4);
  Elements target(DType::kFloat32, bytes / 4);
  const int64_t num_shares = (bytes + kShare - 1) / kShare;
  const int used = num_shares == 1 ? 1 : threads;
  const Timing timing = measure(threads, budget, [&] {
    Items shares(num_shares);
    workers.run(used, [&](int) {
      for (int64_t i = shares.next(); i < num_shares; i = shares.next()) {
        const int64_t at = i * kShare;
        std::memcpy(static_cast<char*>(target.data()) + at,
                    static_cast<const char*>(source.data()) + at, std::min(kShare, bytes - at));
      }
    });
  });
  return timing.median_us;
}

}  // namespace treeattn::micro
