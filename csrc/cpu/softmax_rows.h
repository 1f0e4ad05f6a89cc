// SPDX-License-Identifier: Apache-2.0
// Online softmax over tiles of keys, base 2: a weight is 2^((score - maximum) * factor). Included
// by VECTOR_SOURCES only. Each phase works on all rows before the next begins, so that no row
// waits for its own horizontal reductions.
#pragma once

#include "cpu/product.h"
#include "cpu/transpose.h"

namespace treeattn::cpu::TREEATTN_ISA {

inline constexpr float kInf = __builtin_inff();

// What rows have gathered so far. A row without any key: out 0, maximum -inf, sums 0.
struct RowStates {
  float* out;     // [rows, padded_dim], the weighted sum of V
  float* maxima;  // [rows], of the scores
  float* sums;    // [rows, kLanes], of the weights, a sum per lane

  RowStates from_row(int row, int padded_dim) const {
    return {out + row * padded_dim, maxima + row, sums + row * Vec::kLanes};
  }
};

inline void clear(const RowStates& states, int num_rows, int padded_dim) {
  std::memset(states.out, 0, sizeof(float) * num_rows * padded_dim);
  std::memset(states.sums, 0, sizeof(float) * num_rows * Vec::kLanes);
  for (int row = 0; row < num_rows; ++row) states.maxima[row] = -kInf;
}

// The first `count` lanes; -inf in the others.
inline Vec load_maxima(const float* p, int count) {
  if (count >= Vec::kLanes) return load(p);
  float lanes[Vec::kLanes];
  for (int i = 0; i < Vec::kLanes; ++i) lanes[i] = i < count ? p[i] : -kInf;
  return load(lanes);
}

inline void store_first(float* p, Vec a, int count) {
  if (count >= Vec::kLanes) return store(p, a);
  float lanes[Vec::kLanes];
  store(lanes, a);
  std::memcpy(p, lanes, sizeof(float) * count);
}

// row[begin .. end) = value; end is a multiple of kLanes.
inline void fill(float* row, int begin, int end, float value) {
  for (; begin < end && begin % Vec::kLanes != 0; ++begin) row[begin] = value;
  for (; begin < end; begin += Vec::kLanes) store(row + begin, broadcast(value));
}

// maximum * factor, finite while nothing is seen: -inf - -inf would be NaN, and any finite shift
// gives weights of 0. NaN is kept.
inline Vec shift_of(Vec maximum, Vec factor) {
  return max(broadcast(-__FLT_MAX__), maximum * factor);
}

// rescale[row] = what weights under the maximum `from` are worth under `to`
inline void rescale_rows(const float* from, const float* to, int num_rows, float factor,
                         float* rescale) {
  const Vec f = broadcast(factor);
  for (int row = 0; row < num_rows; row += Vec::kLanes) {
    const int count = num_rows - row;
    const Vec shift = shift_of(load_maxima(to + row, count), f);
    store_first(rescale + row, exp2(load_maxima(from + row, count) * f - shift), count);
  }
}

// Maxima become what turns a score times the factor into the exponent of its weight.
inline void negate_shifts(float* maxima, int num_rows, float factor) {
  const Vec f = broadcast(factor);
  for (int row = 0; row < num_rows; row += Vec::kLanes) {
    const int count = num_rows - row;
    const Vec shift = shift_of(load_maxima(maxima + row, count), f);
    store_first(maxima + row, broadcast(0.0f) - shift, count);
  }
}

// tops[row] = the largest of maxima[row] and the row's scores, NaN left out
inline void find_tops(const float* scores, int num_rows, int width, const float* maxima,
                      float* tops) {
  for (int row = 0; row < num_rows; row += Vec::kLanes) {
    const int count = num_rows - row < Vec::kLanes ? num_rows - row : Vec::kLanes;
    Vec square[Vec::kLanes];
    for (int i = 0; i < Vec::kLanes; ++i) {
      const float* s = scores + (row + (i < count ? i : 0)) * kTileKeys;
      square[i] = broadcast(-kInf);
      for (int c = 0; c < width; c += Vec::kLanes) square[i] = max(load(s + c), square[i]);
    }
    transpose(square);
    Vec top = load_maxima(maxima + row, count);
    for (int i = 0; i < Vec::kLanes; ++i) top = max(square[i], top);
    store_first(tops + row, top, count);
  }
}

inline void store_weights(FloatStep, float* row, int c, const Vec* weights) {
  store(row + c, weights[0]);
}
#if defined(__AVX512BF16__)
// Two vectors of weights become one of pairs, in place: it covers what has been read before.
inline void store_weights(PairStep, float* row, int c, const Vec* weights) {
  const __m512bh pairs = _mm512_cvtne2ps_pbh(weights[1].v, weights[0].v);
  _mm512_storeu_si512(row + c / 2, __m512i(pairs));
}
#endif

// Weights of kVecs vectors of scores, from column c on; `sum` takes them, lane by lane.
template <class Step, int kVecs>
inline void weigh(float* row, int c, Vec factor, Vec minus_shift, Vec& sum) {
  Vec x[kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) x[i] = fma(load(row + c + i * Vec::kLanes), factor, minus_shift);
  exp2_each(x);
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) sum = sum + x[i];
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; i += Step::kPerStep) {
    store_weights(Step{}, row, c + i * Vec::kLanes, x + i);
  }
}

// Scores become weights, in place: element k of a row's kTileKeys is the factor of step k. Only
// the first `width` scores (a multiple of kLanes * kPerStep) are looked at. The states take the
// new maxima and sums; rescale is what `out` must be multiplied with.
template <class Step>
inline void softmax_rows(float* scores, int num_rows, int width, float factor,
                         const RowStates& states, float* tops, float* rescale) {
  find_tops(scores, num_rows, width, states.maxima, tops);
  rescale_rows(states.maxima, tops, num_rows, factor, rescale);
  std::memcpy(states.maxima, tops, sizeof(float) * num_rows);
  negate_shifts(tops, num_rows, factor);
  const Vec f = broadcast(factor);
  for (int row = 0; row < num_rows; ++row) {
    float* const s = scores + row * kTileKeys;
    const Vec minus_shift = broadcast(tops[row]);
    Vec sum = load(states.sums + row * Vec::kLanes) * broadcast(rescale[row]);
    int c = 0;
    for (; c + 4 * Vec::kLanes <= width; c += 4 * Vec::kLanes) {
      weigh<Step, 4>(s, c, f, minus_shift, sum);
    }
    for (; c < width; c += Step::kPerStep * Vec::kLanes) {
      weigh<Step, Step::kPerStep>(s, c, f, minus_shift, sum);
    }
    store(states.sums + row * Vec::kLanes, sum);
  }
}

// a = a and b together; `scale_a` and `scale_b` are scratch of a float per row.
inline void merge_rows(const RowStates& a, const RowStates& b, int num_rows, int padded_dim,
                       float factor, float* tops, float* scale_a, float* scale_b) {
  for (int row = 0; row < num_rows; ++row) {
    tops[row] = a.maxima[row] > b.maxima[row] ? a.maxima[row] : b.maxima[row];
  }
  rescale_rows(a.maxima, tops, num_rows, factor, scale_a);
  rescale_rows(b.maxima, tops, num_rows, factor, scale_b);
  std::memcpy(a.maxima, tops, sizeof(float) * num_rows);
  const auto merge = [&](float* to, const float* from, int row, int size) {
    const Vec to_scale = broadcast(scale_a[row]), from_scale = broadcast(scale_b[row]);
    for (int i = 0; i < size; i += Vec::kLanes) {
      store(to + i, fma(load(from + i), from_scale, load(to + i) * to_scale));
    }
  };
  for (int row = 0; row < num_rows; ++row) {
    merge(a.out + row * padded_dim, b.out + row * padded_dim, row, padded_dim);
    merge(a.sums + row * Vec::kLanes, b.sums + row * Vec::kLanes, row, Vec::kLanes);
  }
}

}  // namespace treeattn::cpu::TREEATTN_ISA
