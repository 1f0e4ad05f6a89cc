// SPDX-License-Identifier: Apache-2.0
// The two products of attention on one tile of keys. Included by VECTOR_SOURCES only.
// Every result is one chain of multiply-adds in a fixed order (over head_dim for scores, over keys
// for values), so its bits do not depend on which other rows or columns share the tile.
#pragma once

#include "cpu/convert.h"
#include "cpu/prefetch.h"
#include "cpu/tree_attention_kernel.h"
#include "cpu/vec.h"

namespace treeattn::cpu::TREEATTN_ISA {

static_assert(Vec::kLanes <= kMaxLanes);
// Accumulators that fit the register file: 6 x 4 of 32 (AVX-512), 6 x 2 of 16 (AVX2).
inline constexpr int kRowBlock = 6;
inline constexpr int kVecBlock = Vec::kLanes == 16 ? 4 : 2;
// The right-hand side lies in panels of this many columns: panel, step, column.
inline constexpr int kPanel = kVecBlock * Vec::kLanes;
// Elements from one panel to the next. The odd cache line keeps the panels of one step out of one
// cache set, where writing a row across panels would evict itself.
inline constexpr int panel_stride(int steps) { return steps * kPanel + 16; }

// What one step of a product multiplies. An Element of the left-hand side is broadcast, a Vec of
// the right-hand side holds one Element per lane.
struct FloatStep {
  using Element = float;
  static constexpr int kPerStep = 1;
  using Broadcast = Vec;
  static Broadcast broadcast_element(const float* a) { return broadcast(*a); }
  static Vec multiply_add(Broadcast a, Vec b, Vec sum) { return fma(a, b, sum); }
  static bool all_finite(Vec b) { return TREEATTN_ISA::all_finite(b); }
  // b with 0 for the elements that are not kept
  static Vec keep(Vec b, const bool (&kept)[1]) { return kept[0] ? b : broadcast(0.0f); }
};

#if defined(__AVX512BF16__)
// A pair of bf16: sum + a.lo * b.lo + a.hi * b.hi in fp32, one instruction.
struct PairStep {
  using Element = uint32_t;
  static constexpr int kPerStep = 2;
  using Broadcast = __m512i;
  static Broadcast broadcast_element(const uint32_t* a) {
    return _mm512_set1_epi32(static_cast<int>(*a));
  }
  static Vec multiply_add(Broadcast a, Vec b, Vec sum) {
    return {_mm512_dpbf16_ps(sum.v, __m512bh(a), __m512bh(_mm512_castps_si512(b.v)))};
  }
  static bool all_finite(Vec b) {
    const __m512i bits = _mm512_castps_si512(b.v);
    const __m512i high = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    return TREEATTN_ISA::all_finite({_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))}) &&
           TREEATTN_ISA::all_finite({_mm512_castsi512_ps(high)});
  }
  static Vec keep(Vec b, const bool (&kept)[2]) {
    const uint32_t bits = (kept[0] ? 0xffffu : 0u) | (kept[1] ? 0xffff0000u : 0u);
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(bits));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(b.v), mask))};
  }
};
#endif

inline Vec load_elements(const float* p) { return load(p); }
inline Vec load_elements(const uint32_t* p) { return load(reinterpret_cast<const float*>(p)); }

// sum[r][c] += a[r][k] * b[k][c] over the steps k
template <class Step, int kRows, int kVecs>
inline void add_products(const typename Step::Element* a, int a_stride,
                         const typename Step::Element* b, int steps, Vec (&sum)[kRows][kVecs]) {
#pragma GCC unroll 4
  for (int k = 0; k < steps; ++k) {
    Vec b_k[kVecs];
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) b_k[c] = load_elements(b + k * kPanel + c * Vec::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename Step::Broadcast a_rk = Step::broadcast_element(a + r * a_stride + k);
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) sum[r][c] = Step::multiply_add(a_rk, b_k[c], sum[r][c]);
    }
  }
}

// Fetches a block's lines behind its products, or, kOften, a share of them after every 16 steps.
template <class Step, bool kOften, int kRows, int kVecs>
inline void add_products(const typename Step::Element* a, int a_stride,
                         const typename Step::Element* b, int steps, Vec (&sum)[kRows][kVecs],
                         Prefetch& prefetch) {
  constexpr int kStepsBetween = 16;
  int lines = prefetch.lines_per_block();
  if constexpr (kOften) {
    for (int k = 0; k < steps; k += kStepsBetween) {
      const int left = steps - k;
      const int count = left < kStepsBetween ? left : kStepsBetween;
      add_products<Step>(a + k, a_stride, b + k * kPanel, count, sum);
      const int share = lines * count / left;
      prefetch.advance(share);
      lines -= share;
    }
  } else {
    add_products<Step>(a, a_stride, b, steps, sum);
    prefetch.advance(lines);
  }
}

template <int kN>
struct Count {
  static constexpr int value = kN;
};

// Calls f with Count<n>, for 1 <= n <= kMax.
template <int kMax, class F>
inline void with_count(int n, F&& f) {
  if (n == kMax) return f(Count<kMax>{});
  if constexpr (kMax > 1) with_count<kMax - 1>(n, f);
}

// Calls block(first_row, panel, Count<rows>, Count<vecs>) until num_rows x num_vecs is covered.
// The last rows are shared evenly between two blocks: a block of one or two rows has too few
// accumulators to hide the latency of a multiply-add.
template <class Block>
inline void for_each_block(int num_rows, int num_vecs, Block&& block) {
  for (int vec = 0; vec < num_vecs; vec += kVecBlock) {
    const int vecs = num_vecs - vec < kVecBlock ? num_vecs - vec : kVecBlock;
    with_count<kVecBlock>(vecs, [&](auto vec_count) {
      const int panel = vec / kVecBlock;
      int row = 0;
      for (; num_rows - row >= 2 * kRowBlock; row += kRowBlock) {
        block(row, panel, Count<kRowBlock>{}, vec_count);
      }
      while (row < num_rows) {
        const int left = num_rows - row;
        const int rows = left > kRowBlock ? (left + 1) / 2 : left;
        with_count<kRowBlock>(rows,
                              [&](auto row_count) { block(row, panel, row_count, vec_count); });
        row += rows;
      }
    });
  }
}

template <bool kOften>
struct Often {
  static constexpr bool value = kOften;
};

// Calls f with an Often: whether lines are fetched between the products of a block.
template <class F>
inline void with_fetching(const Prefetch& prefetch, F&& f) {
  if (prefetch.lines_per_block() > kFewLines) return f(Often<true>{});
  f(Often<false>{});
}

// scores[r][c] = sum over steps of q[r][k] * keys[k][c], rows of kTileKeys
template <class Step>
inline void score_tile(const typename Step::Element* q, int q_stride, int num_rows,
                       const typename Step::Element* keys, int steps, int num_keys, float* scores,
                       Prefetch& prefetch) {
  const int num_vecs = (num_keys + Vec::kLanes - 1) / Vec::kLanes;
  with_fetching(prefetch, [&](auto often) {
    for_each_block(
        num_rows, num_vecs,
        [&](int row, int panel, auto rows, auto vecs) __attribute__((always_inline)) {
          Vec sum[rows.value][vecs.value];
#pragma GCC unroll 8
          for (auto& sums : sum) {
#pragma GCC unroll 8
            for (Vec& vec : sums) vec = broadcast(0.0f);
          }
          add_products<Step, often.value>(q + row * q_stride, q_stride,
                                          keys + panel * panel_stride(steps), steps, sum, prefetch);
#pragma GCC unroll 8
          for (int r = 0; r < rows.value; ++r) {
#pragma GCC unroll 8
            for (int c = 0; c < vecs.value; ++c) {
              store(scores + (row + r) * kTileKeys + panel * kPanel + c * Vec::kLanes, sum[r][c]);
            }
          }
        });
  });
}

// out[r][c] = out[r][c] * rescale[r] + sum over steps of weights[r][k] * values[k][c]
template <class Step>
inline void value_tile(const typename Step::Element* weights, int num_rows,
                       const typename Step::Element* values, int steps, int padded_dim,
                       const float* rescale, float* out, Prefetch& prefetch) {
  with_fetching(prefetch, [&](auto often) {
    for_each_block(num_rows, padded_dim / Vec::kLanes,
                   [&](int row, int panel, auto rows, auto vecs) __attribute__((always_inline)) {
                     float* const o = out + row * padded_dim + panel * kPanel;
                     Vec sum[rows.value][vecs.value];
#pragma GCC unroll 8
                     for (int r = 0; r < rows.value; ++r) {
#pragma GCC unroll 8
                       for (int c = 0; c < vecs.value; ++c) {
                         sum[r][c] = load(o + r * padded_dim + c * Vec::kLanes) *
                                     broadcast(rescale[row + r]);
                       }
                     }
                     add_products<Step, often.value>(weights + row * kTileKeys, kTileKeys,
                                                     values + panel * panel_stride(steps), steps,
                                                     sum, prefetch);
#pragma GCC unroll 8
                     for (int r = 0; r < rows.value; ++r) {
#pragma GCC unroll 8
                       for (int c = 0; c < vecs.value; ++c) {
                         store(o + r * padded_dim + c * Vec::kLanes, sum[r][c]);
                       }
                     }
                   });
  });
}

}  // namespace treeattn::cpu::TREEATTN_ISA
