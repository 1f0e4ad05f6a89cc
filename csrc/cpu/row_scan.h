// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"

namespace treeattn::cpu {

struct RowPeak {
  float max;    // -inf when there is nothing above it
  bool finite;  // no NaN and no +inf; -inf is a logit like others
};

// Passes over a piece of one row of logits, in the instruction set of this CPU.
struct RowScan {
  // x[0 .. count) = the logits of ids begin .. begin+count; ids that `allowed` excludes become
  // -inf. begin is a multiple of 32; `allowed` may be nullptr.
  void (*load)(float* x, const void* row, DType dtype, const uint32_t* allowed, int begin,
               int count);
  RowPeak (*peak)(const float* x, int count);
  // w = exp((x - max) / temperature), exactly 1 at the maximum; returns their sum.
  float (*weigh)(float* w, const float* x, int count, float max, float temperature);
};

RowScan row_scan();

}  // namespace treeattn::cpu
