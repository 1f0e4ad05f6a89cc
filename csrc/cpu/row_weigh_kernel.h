// SPDX-License-Identifier: Apache-2.0
// The weighing half of RowScan. Included by the sources of VECTOR_SOURCES only.
#pragma once

#include "cpu/convert.h"
#include "cpu/row_scan.h"

namespace treeattn::cpu::TREEATTN_ISA {

float weigh(float* w, const void* x, DType dtype, int count, float max, float temperature);
float mass(const void* x, DType dtype, const float* w, int count, float low);
RowSplit split(float* between, const void* x, DType dtype, const float* w, int count, float low,
               float high);
RowKept keep(float* kept, const void* x, DType dtype, const float* w, int count, float cut,
             bool with_ties, float min_weight);
void scale(double* u, const float* w, int count, double a);
double subtract(double* u, const float* q, int count, double b);
double sum(const float* q, int count);
float depth_sum(const void* x, DType dtype, const float* w, int count, float max);

}  // namespace treeattn::cpu::TREEATTN_ISA
