// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace treeattn::cpu {

// What one core can do at most, for the roofline of the benchmarks.
struct Calibration {
  // Runs `rounds` rounds of independent multiply-adds that live in registers only and returns the
  // number of floating point operations done. With `dots` they are bf16 dot products accumulated
  // in fp32; 0 where this instruction set has no such instruction.
  double (*spend_flops)(bool dots, int64_t rounds);
  // Reads `count` floats in order and returns their sum.
  float (*read)(const float* data, int64_t count);
};

// One per instruction set, all from calibrate_kernel.cpp.
namespace portable {
Calibration calibration();
}
namespace avx2 {
Calibration calibration();
}
namespace avx512 {
Calibration calibration();
}
namespace avx512_bf16 {
Calibration calibration();
}

}  // namespace treeattn::cpu
