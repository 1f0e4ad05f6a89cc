// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_weigh_kernel.h"

#include "cpu/vec_scan.h"

namespace treeattn::cpu::TREEATTN_ISA {
namespace {

// Calls f(i, logits i .. i+kLanes, lanes in use); after the last logit come -infs.
template <class T, class F>
inline void for_each_vec(const T* x, int count, F&& f) {
  int i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) f(i, load(x + i), Vec::kLanes);
  if (i == count) return;
  float lanes[Vec::kLanes];
  for (int lane = 0; lane < Vec::kLanes; ++lane) {
    lanes[lane] = i + lane < count ? to_float(x[i + lane]) : -__builtin_inff();
  }
  f(i, load(lanes), count - i);
}

inline Vec load_first(const float* w, int num_lanes) {
  if (num_lanes == Vec::kLanes) return load(w);
  float lanes[Vec::kLanes] = {};
  for (int lane = 0; lane < num_lanes; ++lane) lanes[lane] = w[lane];
  return load(lanes);
}

inline void store_first(float* w, Vec a, int num_lanes) {
  if (num_lanes == Vec::kLanes) return store(w, a);
  float lanes[Vec::kLanes];
  store(lanes, a);
  for (int lane = 0; lane < num_lanes; ++lane) w[lane] = lanes[lane];
}

// Calls f(x as its element type, weights): weights(i, lanes) is Vec, 1 where w is nullptr. The
// -infs after the last logit have weight 0.
template <class F>
inline auto with_weights(const void* x, DType dtype, const float* w, F&& f) {
  with_element(dtype, [&](auto element) {
    const auto* const typed = static_cast<const decltype(element)*>(x);
    if (w != nullptr) {
      f(typed, [w](int i, int num_lanes) { return load_first(w + i, num_lanes); });
    } else {
      f(typed, [](int, int num_lanes) {
        if (num_lanes == Vec::kLanes) return broadcast(1.0f);
        float ones[Vec::kLanes] = {};
        for (int lane = 0; lane < num_lanes; ++lane) ones[lane] = 1.0f;
        return load(ones);
      });
    }
  });
}

}  // namespace

float weigh(float* w, const void* x, DType dtype, int count, float max, float temperature) {
  const Vec origin = broadcast(max);
  const Vec scale = broadcast(temperature);
  const bool scaled = temperature != 1.0f;
  Vec sum = broadcast(0.0f);
  with_element(dtype, [&](auto element) {
    for_each_vec(static_cast<const decltype(element)*>(x), count, [&](int i, Vec v, int lanes) {
      const Vec distance = v - origin;
      const Vec e = exp(scaled ? distance / scale : distance);
      sum = sum + e;
      store_first(w + i, e, lanes);
    });
  });
  return reduce_add(sum);
}

float mass(const void* x, DType dtype, const float* w, int count, float low) {
  const Vec bound = broadcast(low);
  Vec sum = broadcast(0.0f);
  with_weights(x, dtype, w, [&](const auto* logits, auto weights) {
    for_each_vec(logits, count, [&](int i, Vec v, int lanes) {
      sum = sum + where(at_least(v, bound), weights(i, lanes));
    });
  });
  return reduce_add(sum);
}

RowSplit split(float* between, const void* x, DType dtype, const float* w, int count, float low,
               float high) {
  const Vec lower = broadcast(low), upper = broadcast(high);
  Vec sum_above = broadcast(0.0f), sum_between = sum_above;
  float* out = between;
  with_weights(x, dtype, w, [&](const auto* logits, auto weights) {
    for_each_vec(logits, count, [&](int i, Vec v, int lanes) {
      const Mask is_above = at_least(v, upper);
      const Mask is_between = without(at_least(v, lower), is_above);
      const Vec weight = weights(i, lanes);
      sum_above = sum_above + where(is_above, weight);
      sum_between = sum_between + where(is_between, weight);
      const uint32_t all = (1u << lanes) - 1;
      const uint32_t chosen = bits(is_between) & all;
      compress(out, is_between, v);
      out += __builtin_popcount(chosen);
    });
  });
  return {.above = reduce_add(sum_above),
          .between = reduce_add(sum_between),
          .num_between = static_cast<int>(out - between)};
}

RowKept keep(float* kept, const void* x, DType dtype, const float* w, int count, float cut,
             bool with_ties, float min_weight) {
  const Vec bound = broadcast(cut), least = broadcast(min_weight);
  Vec sum = broadcast(0.0f);
  int num_ties = 0;
  with_weights(x, dtype, w, [&](const auto* logits, auto weights) {
    for_each_vec(logits, count, [&](int i, Vec v, int lanes) {
      const Vec weight = weights(i, lanes);
      const Mask ties = equal(v, bound);
      const Mask enough = with_ties ? at_least(v, bound) : above(v, bound);
      const Vec chosen = where(enough & at_least(weight, least), weight);
      sum = sum + chosen;
      store_first(kept + i, chosen, lanes);
      const uint32_t tied = bits(ties) & ((1u << lanes) - 1);
      if (tied != 0) num_ties += __builtin_popcount(tied);
    });
  });
  return {.sum = reduce_add(sum), .num_ties = num_ties};
}

}  // namespace treeattn::cpu::TREEATTN_ISA
