// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/row_scan.h"

namespace treeattn::cpu {

// One per instruction set, all from row_scan_kernel.cpp.
namespace portable {
RowScan row_scan();
}
namespace avx2 {
RowScan row_scan();
}
namespace avx512 {
RowScan row_scan();
}
namespace avx512_bf16 {
RowScan row_scan();
}

}  // namespace treeattn::cpu
