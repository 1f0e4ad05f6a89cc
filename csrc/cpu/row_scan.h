// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"

namespace treeattn::cpu {

struct RowPeak {
  float max;    // -inf when there is nothing above it
  bool finite;  // no NaN and no +inf; -inf is a logit like others
};

struct RowTop {
  int index;    // the first that holds the maximum; -1 when that is -inf
  bool finite;  // as above; when false, index means nothing
};

struct RowSplit {
  float above;      // sum of the weights where x >= high
  int num_between;  // entries of low <= x < high
};

struct RowKept {
  float sum;
  int num_ties;  // entries that equal `cut`
};

// Passes over `count` logits x of one row, in the instruction set of this CPU. `x` may have any
// dtype that logits may have. A weight of nullptr stands for 1 everywhere. Sums add up at most a
// few thousand floats each; a longer row is taken in pieces.
struct RowScan {
  // to[i] = logit begin + i of the row; -inf at ids that `allowed`, if given, excludes: then begin
  // is a multiple of 32.
  void (*load)(float* to, const void* row, DType dtype, const uint32_t* allowed, int begin,
               int count);
  RowTop (*top)(const void* x, DType dtype, int count);
  RowPeak (*peak)(const void* x, DType dtype, int count);
  // w = exp((x - max) / temperature), exactly 1 at the maximum; returns their sum.
  float (*weigh)(float* w, const void* x, DType dtype, int count, float max, float temperature);
  // Sum of w where x >= low.
  float (*mass)(const void* x, DType dtype, const float* w, int count, float low);
  // The x of low <= x < high go to `between`, in order; up to kSplitRoom floats
  // behind them are overwritten.
  RowSplit (*split)(float* between, const void* x, DType dtype, const float* w, int count,
                    float low, float high);
  // kept = w where x > cut (or x == cut, with_ties) and w >= min_weight, else 0.
  RowKept (*keep)(float* kept, const void* x, DType dtype, const float* w, int count, float cut,
                  bool with_ties, float min_weight);
  // u = a * w.
  void (*scale)(double* u, const float* w, int count, double a);
  // u = max(0, u - b * q); returns their sum.
  double (*subtract)(double* u, const float* q, int count, double b);
  double (*sum)(const float* q, int count);
  // Sum of w * (max - x) where w > 0.
  float (*depth_sum)(const void* x, DType dtype, const float* w, int count, float max);
};

inline constexpr int kSplitRoom = 16;

RowScan row_scan();

}  // namespace treeattn::cpu
