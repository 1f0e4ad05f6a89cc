// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "cpu/isa.h"

namespace treeattn::micro {

// The kernels ask for the active set at each call, so this takes effect at once. No worker may run.
inline void use_isa(cpu::Isa isa) { ::setenv("TREEATTN_CPU_ISA", cpu::isa_name(isa), 1); }

// What this CPU has, best last. Leaves the best one active.
inline std::vector<cpu::Isa> supported_isas() {
  std::vector<cpu::Isa> found;
  for (const cpu::Isa isa :
       {cpu::Isa::kPortable, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAvx512Bf16}) {
    use_isa(isa);
    try {
      found.push_back(cpu::active_isa());
    } catch (const std::invalid_argument&) {
      break;  // they are ordered: a CPU that lacks one lacks all after it
    }
  }
  use_isa(found.back());
  return found;
}

}  // namespace treeattn::micro
