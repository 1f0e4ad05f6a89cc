// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_weigh_kernel.h"

#include "cpu/vec_scan.h"

namespace treeattn::cpu::TREEATTN_ISA {
namespace {

constexpr int kLanes = Vec::kLanes;
constexpr int kSums = 4;  // partial sums, so that additions do not wait for each other

struct Sum {
  Vec part[kSums] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};

  float total() const { return reduce_add((part[0] + part[1]) + (part[2] + part[3])); }
};

// What a loop over a row sees at once: logits and weights i .. i + kLanes. In the last piece of a
// row the lanes from `count` on hold -inf and weight 0.
template <class T>
struct FullVec {
  const T* x;
  const float* w;
  int i;

  static constexpr int count = kLanes;
  Vec logits() const { return load(x + i); }
  Vec ones() const { return broadcast(1.0f); }
  Vec weights() const { return w != nullptr ? load(w + i) : ones(); }
  void put(float* to, Vec a) const { store(to + i, a); }
};

template <class T>
struct LastVec {
  const T* x;
  const float* w;
  int i, count;

  Vec logits() const {
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lane < count ? to_float(x[i + lane]) : -__builtin_inff();
    }
    return load(lanes);
  }
  Vec ones() const {
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane < count ? 1.0f : 0.0f;
    return load(lanes);
  }
  Vec weights() const {
    if (w == nullptr) return ones();
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane < count ? w[i + lane] : 0.0f;
    return load(lanes);
  }
  void put(float* to, Vec a) const {
    float lanes[kLanes];
    store(lanes, a);
    for (int lane = 0; lane < count; ++lane) to[i + lane] = lanes[lane];
  }
};

// Calls f(piece, number of a partial sum) from the first logit to the last.
template <class F>
inline void for_each_vec(const void* x, DType dtype, const float* w, int count, F&& f) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    const T* const logits = static_cast<const T*>(x);
    int i = 0;
    for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
#pragma GCC unroll 4
      for (int part = 0; part < kSums; ++part) {
        f(FullVec<T>{.x = logits, .w = w, .i = i + part * kLanes}, part);
      }
    }
    for (; i + kLanes <= count; i += kLanes) f(FullVec<T>{.x = logits, .w = w, .i = i}, 0);
    if (i < count) f(LastVec<T>{.x = logits, .w = w, .i = i, .count = count - i}, 1);
  });
}

// Sum of f(i), in an order that is the same for all instruction sets. The compiler vectorises it.
template <class F>
inline double sum_doubles(int count, F&& f) {
  constexpr int kParts = 16;
  double part[kParts] = {};
  int i = 0;
  for (; i + kParts <= count; i += kParts) {
    for (int j = 0; j < kParts; ++j) part[j] += f(i + j);
  }
  for (int j = 0; i + j < count; ++j) part[j] += f(i + j);
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) part[j] += part[j + width];
  }
  return part[0];
}

}  // namespace

float weigh(float* w, const void* x, DType dtype, int count, float max, float temperature) {
  const Vec origin = broadcast(max);
  const Vec scale = broadcast(1.44269504f / temperature);
  Sum sum;
  for_each_vec(x, dtype, nullptr, count, [&](auto piece, int part) {
    const Vec e = exp2_product(piece.logits() - origin, scale);
    sum.part[part] = sum.part[part] + e;
    piece.put(w, e);
  });
  return sum.total();
}

float mass(const void* x, DType dtype, const float* w, int count, float low) {
  const Vec bound = broadcast(low);
  Sum sum;
  for_each_vec(x, dtype, w, count, [&](auto piece, int part) {
    const Vec kept = where(at_least(piece.logits(), bound), piece.weights());
    sum.part[part] = sum.part[part] + kept;
  });
  return sum.total();
}

RowSplit split(float* between, const void* x, DType dtype, const float* w, int count, float low,
               float high) {
  const Vec lower = broadcast(low), upper = broadcast(high);
  Sum above;
  float* out = between;
  for_each_vec(x, dtype, w, count, [&](auto piece, int part) {
    const Vec v = piece.logits();
    const Mask is_above = at_least(v, upper);
    const Mask is_between = without(at_least(v, lower), is_above);
    above.part[part] = above.part[part] + where(is_above, piece.weights());
    compress(out, is_between, v);
    out += __builtin_popcount(bits(is_between) & ((1u << piece.count) - 1));
  });
  return {.above = above.total(), .num_between = static_cast<int>(out - between)};
}

RowKept keep(float* kept, const void* x, DType dtype, const float* w, int count, float cut,
             bool with_ties, float min_weight) {
  const Vec bound = broadcast(cut), least = broadcast(min_weight);
  Sum sum, num_ties;
  for_each_vec(x, dtype, w, count, [&](auto piece, int part) {
    const Vec v = piece.logits(), weight = piece.weights();
    const Mask enough = with_ties ? at_least(v, bound) : above(v, bound);
    const Vec chosen = where(enough & at_least(weight, least), weight);
    sum.part[part] = sum.part[part] + chosen;
    num_ties.part[part] = num_ties.part[part] + where(equal(v, bound), piece.ones());
    piece.put(kept, chosen);
  });
  return {.sum = sum.total(), .num_ties = static_cast<int>(num_ties.total())};
}

void scale(double* u, const float* w, int count, double a) {
  for (int i = 0; i < count; ++i) u[i] = a * double{w[i]};
}

double subtract(double* u, const float* q, int count, double b) {
  return sum_doubles(count, [&](int i) {
    const double left = u[i] - b * double{q[i]};
    return u[i] = left > 0 ? left : 0;
  });
}

double sum(const float* q, int count) {
  return sum_doubles(count, [&](int i) { return double{q[i]}; });
}

float depth_sum(const void* x, DType dtype, const float* w, int count, float max) {
  const Vec origin = broadcast(max), zero = broadcast(0.0f);
  Sum sum;
  for_each_vec(x, dtype, w, count, [&](auto piece, int part) {
    const Vec weight = piece.weights();
    const Vec depth = where(above(weight, zero), weight * (origin - piece.logits()));
    sum.part[part] = sum.part[part] + depth;
  });
  return sum.total();
}

}  // namespace treeattn::cpu::TREEATTN_ISA
