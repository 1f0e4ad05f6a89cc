// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_scan.h"

#include "cpu/isa.h"
#include "cpu/row_scan_kernel.h"

namespace treeattn::cpu {

RowScan row_scan() {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      return avx512_bf16::row_scan();
    case Isa::kAvx512:
      return avx512::row_scan();
    case Isa::kAvx2:
      return avx2::row_scan();
#endif
    default:
      return portable::row_scan();
  }
}

}  // namespace treeattn::cpu
