// SPDX-License-Identifier: Apache-2.0
#include "cpu/calibrate_kernel.h"

#include "cpu/vec.h"

namespace treeattn::cpu::TREEATTN_ISA {
namespace {

// Enough independent chains to hide a latency of 6 cycles at two instructions per cycle, few
// enough that they and two constants stay in the registers. A portable Vec takes two of them.
#if defined(__AVX2__)
constexpr int kChains = 12;
#else
constexpr int kChains = 6;
#endif
constexpr int kStreams = 8;  // Vecs that one round of `read` loads

// The results must be used, or the loops above them would be dropped.
void use(const Vec* chains, int count) {
  Vec sum = chains[0];
  for (int i = 1; i < count; ++i) sum = sum + chains[i];
  volatile float kept = reduce_add(sum);
  (void)kept;
}

double spend_fmas(int64_t rounds) {
  Vec chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = broadcast(1.0f + static_cast<float>(i));
  // Converges to 1: never a denormal, which would be slow.
  const Vec half = broadcast(0.5f);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) chains[i] = fma(chains[i], half, half);
  }
  use(chains, kChains);
  return 2.0 * kChains * Vec::kLanes * static_cast<double>(rounds);
}

#if defined(__AVX512BF16__)

double spend_dots(int64_t rounds) {
  Vec chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = broadcast(static_cast<float>(i));
  const __m512bh one = (__m512bh)_mm512_set1_epi32(0x3f803f80);   // two bf16 ones per lane
  const __m512bh step = (__m512bh)_mm512_set1_epi32(0x3f80bf80);  // 1 and -1: the sum stays put
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) chains[i].v = _mm512_dpbf16_ps(chains[i].v, one, step);
  }
  use(chains, kChains);
  return 4.0 * kChains * Vec::kLanes * static_cast<double>(rounds);
}

#else

double spend_dots(int64_t) { return 0; }

#endif

double spend_flops(bool dots, int64_t rounds) {
  return dots ? spend_dots(rounds) : spend_fmas(rounds);
}

float read(const float* data, int64_t count) {
  constexpr int kStep = kStreams * Vec::kLanes;
  Vec sums[kStreams];
  for (int i = 0; i < kStreams; ++i) sums[i] = broadcast(0.0f);
  int64_t at = 0;
  for (; at + kStep <= count; at += kStep) {
    for (int i = 0; i < kStreams; ++i) sums[i] = sums[i] + load(data + at + i * Vec::kLanes);
  }
  float total = 0;
  for (int i = 0; i < kStreams; ++i) total += reduce_add(sums[i]);
  for (; at < count; ++at) total += data[at];
  return total;
}

}  // namespace

Calibration calibration() { return {.spend_flops = spend_flops, .read = read}; }

}  // namespace treeattn::cpu::TREEATTN_ISA
