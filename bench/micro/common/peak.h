// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/calibrate.h"
#include "micro/common/isas.h"
#include "micro/common/timing.h"
#include "micro/common/workers.h"
#include "treeattn/dtype.h"

namespace treeattn::micro {

// Floating-point operations per microsecond that no kernel of the instruction set can beat, of all
// threads together: multiply-adds in registers, of bf16 pairs where the set multiplies them.
inline double measure_peak(Workers& workers, int threads, const Budget& budget, cpu::Isa isa,
                           DType dtype) {
  constexpr int64_t kRounds = 20'000;
  use_isa(isa);
  const auto spend_flops = cpu::calibration().spend_flops;
  const bool dots = dtype == DType::kBFloat16 && spend_flops(true, 1) > 0;
  const Timing timing = measure(
      threads, budget, [&] { workers.run(threads, [&](int) { spend_flops(dots, kRounds); }); });
  return spend_flops(dots, kRounds) * threads / timing.p20_us;
}

}  // namespace treeattn::micro
