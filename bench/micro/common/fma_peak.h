// SPDX-License-Identifier: Apache-2.0
// The rate no kernel of an instruction set can beat. Included by a source that is compiled for each
// of them: no C++ library templates in here.
#pragma once

#include <cstdint>

namespace treeattn::micro {

struct Flops {
  double count;
  float result;  // depends on all of them
};

// Multiply-adds in registers: of floats, and of bf16 pairs where the set has such an instruction.
namespace portable {
Flops fma_loop(int64_t rounds);
Flops bf16_loop(int64_t rounds);
}  // namespace portable
namespace avx2 {
Flops fma_loop(int64_t rounds);
Flops bf16_loop(int64_t rounds);
}  // namespace avx2
namespace avx512 {
Flops fma_loop(int64_t rounds);
Flops bf16_loop(int64_t rounds);
}  // namespace avx512
namespace avx512_bf16 {
Flops fma_loop(int64_t rounds);
Flops bf16_loop(int64_t rounds);
}  // namespace avx512_bf16

}  // namespace treeattn::micro
