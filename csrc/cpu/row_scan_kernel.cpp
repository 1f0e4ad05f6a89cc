// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_scan_kernel.h"

#include "cpu/convert.h"
#include "cpu/vec.h"

namespace treeattn::cpu::TREEATTN_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLargest = __FLT_MAX__;

// The last lanes of x, -inf after its end.
Vec load_tail(const float* x, int count) {
  float lanes[Vec::kLanes];
  for (int i = 0; i < Vec::kLanes; ++i) lanes[i] = i < count ? x[i] : -kInfinity;
  return load(lanes);
}

template <class T>
void load_logits(float* x, const T* row, int count) {
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) store(x + i, load(row + i));
  for (; i < count; ++i) x[i] = to_float(row[i]);
}

void exclude(float* x, const uint32_t* allowed, int count) {
  for (int word = 0; word * 32 < count; ++word) {
    const uint32_t bits = allowed[word];
    if (bits == ~0u) continue;
    float* const lanes = x + word * 32;
    const int num_lanes = count - word * 32 < 32 ? count - word * 32 : 32;
    for (int i = 0; i < num_lanes; ++i) lanes[i] = bits >> i & 1 ? lanes[i] : -kInfinity;
  }
}

void load_row(float* x, const void* row, DType dtype, const uint32_t* allowed, int begin,
              int count) {
  with_element(dtype, [&](auto element) {
    load_logits(x, static_cast<const decltype(element)*>(row) + begin, count);
  });
  if (allowed != nullptr) exclude(x, allowed + begin / 32, count);
}

RowPeak peak(const float* x, int count) {
  const Vec zero = broadcast(0.0f);
  const Vec lowest = broadcast(-kLargest);
  Vec highest = broadcast(-kInfinity);
  Vec poison = zero;  // becomes NaN at the first NaN or +inf
  const auto take = [&](Vec v) {
    highest = max(v, highest);  // the second argument wins against NaN
    poison = fma(max(lowest, v), zero, poison);
  };
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) take(load(x + i));
  if (i < count) take(load_tail(x + i, count - i));
  return {.max = reduce_max(highest), .finite = all_finite(poison)};
}

float weigh(float* w, const float* x, int count, float max, float temperature) {
  const Vec origin = broadcast(max);
  const Vec scale = broadcast(temperature);
  const bool scaled = temperature != 1.0f;
  Vec sum = broadcast(0.0f);
  const auto weight = [&](Vec v) {
    const Vec distance = v - origin;
    const Vec e = exp(scaled ? distance / scale : distance);
    sum = sum + e;
    return e;
  };
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) store(w + i, weight(load(x + i)));
  if (i < count) {
    float lanes[Vec::kLanes];
    store(lanes, weight(load_tail(x + i, count - i)));
    for (int lane = 0; i + lane < count; ++lane) w[i + lane] = lanes[lane];
  }
  return reduce_add(sum);
}

}  // namespace

RowScan row_scan() { return {.load = load_row, .peak = peak, .weigh = weigh}; }

}  // namespace treeattn::cpu::TREEATTN_ISA
