// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace treeattn::cpu {

// Ordered: a CPU that has one has all before it.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

// The best instruction set of this CPU, or the one that TREEATTN_CPU_ISA names
// (portable | avx2 | avx512 | avx512_bf16). Throws std::invalid_argument when the name is unknown
// or this CPU lacks it. Read once per call, so tests can change it.
Isa active_isa();

const char* isa_name(Isa isa);

}  // namespace treeattn::cpu
