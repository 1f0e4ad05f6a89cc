// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set, with the flags of the kernels and their own vector type.
#include "micro/common/fma_peak.h"

#include "cpu/vec.h"

namespace treeattn::micro::TREEATTN_ISA {
namespace {

using cpu::TREEATTN_ISA::Vec;

// Independent sums, enough to cover the latency of two multiply-add units, few enough to stay in
// registers. Without FMA a Vec is two registers and the file has 16.
#if defined(__AVX2__)
constexpr int kSums = 12;
#else
constexpr int kSums = 6;
#endif

float total(const Vec (&sums)[kSums]) {
  Vec all = sums[0];
  for (int i = 1; i < kSums; ++i) all = all + sums[i];
  return cpu::TREEATTN_ISA::reduce_add(all);
}

}  // namespace

Flops fma_loop(int64_t rounds) {
  const Vec a = cpu::TREEATTN_ISA::broadcast(0.5f);
  const Vec b = cpu::TREEATTN_ISA::broadcast(1.0f);
  Vec sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = cpu::TREEATTN_ISA::broadcast(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kSums; ++i) sums[i] = cpu::TREEATTN_ISA::fma(sums[i], a, b);
  }
  return {.count = 2.0 * Vec::kLanes * kSums * static_cast<double>(rounds), .result = total(sums)};
}

Flops bf16_loop(int64_t rounds) {
#if defined(__AVX512BF16__)
  const __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  Vec sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = cpu::TREEATTN_ISA::broadcast(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kSums; ++i) sums[i].v = _mm512_dpbf16_ps(sums[i].v, pairs, pairs);
  }
  return {.count = 4.0 * Vec::kLanes * kSums * static_cast<double>(rounds), .result = total(sums)};
#else
  return fma_loop(rounds);  // bf16 is widened to floats here
#endif
}

}  // namespace treeattn::micro::TREEATTN_ISA
