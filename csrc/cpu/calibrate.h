// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/calibrate_kernel.h"

namespace treeattn::cpu {

Calibration calibration();  // of the active instruction set

}  // namespace treeattn::cpu
