// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"

#include <cstdlib>
#include <cstring>

#include "treeattn/check.h"

namespace treeattn::cpu {
namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512_bf16"};

Isa best_isa() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::kAvx512Bf16;
  if (avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kPortable;
}

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

Isa active_isa() {
  static const Isa best = best_isa();
  const char* forced = std::getenv("TREEATTN_CPU_ISA");
  if (forced == nullptr || *forced == '\0') return best;
  for (int i = 0; i <= static_cast<int>(Isa::kAvx512Bf16); ++i) {
    if (std::strcmp(forced, kNames[i]) != 0) continue;
    TREEATTN_CHECK(i <= static_cast<int>(best), "TREEATTN_CPU_ISA = ", forced,
                   " is not supported by this CPU, whose best is ", isa_name(best));
    return static_cast<Isa>(i);
  }
  TREEATTN_CHECK(false, "TREEATTN_CPU_ISA must be portable, avx2, avx512 or avx512_bf16, got ",
                 forced);
  return best;
}

}  // namespace treeattn::cpu
