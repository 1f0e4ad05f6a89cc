// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "cpu/isa.h"
#include "micro/common/fma_peak.h"
#include "micro/common/timing.h"
#include "micro/common/workers.h"
#include "treeattn/dtype.h"

namespace treeattn::micro {

using PeakLoop = Flops (*)(int64_t rounds);

inline PeakLoop peak_loop(cpu::Isa isa, DType dtype) {
  const bool bf16 = dtype == DType::kBFloat16;
  switch (isa) {
#if defined(__x86_64__)
    case cpu::Isa::kAvx512Bf16:
      return bf16 ? avx512_bf16::bf16_loop : avx512_bf16::fma_loop;
    case cpu::Isa::kAvx512:
      return bf16 ? avx512::bf16_loop : avx512::fma_loop;
    case cpu::Isa::kAvx2:
      return bf16 ? avx2::bf16_loop : avx2::fma_loop;
#endif
    default:
      return bf16 ? portable::bf16_loop : portable::fma_loop;
  }
}

// Floating-point operations per microsecond, of all threads together.
inline double measure_peak(Workers& workers, int threads, const Budget& budget, cpu::Isa isa,
                           DType dtype) {
  constexpr int64_t kRounds = 20'000;
  const PeakLoop loop = peak_loop(isa, dtype);
  std::atomic<float> kept{0};
  const Timing timing = measure(threads, budget, [&] {
    workers.run(threads, [&](int) { kept.store(loop(kRounds).result, std::memory_order_relaxed); });
  });
  return loop(kRounds).count * threads / timing.p20_us;
}

}  // namespace treeattn::micro
