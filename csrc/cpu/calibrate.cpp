// SPDX-License-Identifier: Apache-2.0
#include "cpu/calibrate.h"

#include "cpu/isa.h"

namespace treeattn::cpu {

Calibration calibration() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      return avx512_bf16::calibration();
    case Isa::kAvx512:
      return avx512::calibration();
    case Isa::kAvx2:
      return avx2::calibration();
#endif
    default:
      return portable::calibration();
  }
}

}  // namespace treeattn::cpu
