// SPDX-License-Identifier: Apache-2.0
// The keys and values of one attention product, packed for it. Included by VECTOR_SOURCES only.
#pragma once

#include "cpu/product.h"
#include "cpu/transpose.h"
#include "treeattn/paged_kv.h"

namespace treeattn::cpu::TREEATTN_ISA {

inline int min_int(int a, int b) { return a < b ? a : b; }
inline int max_int(int a, int b) { return a > b ? a : b; }
inline int padded(int size) { return (size + Vec::kLanes - 1) / Vec::kLanes * Vec::kLanes; }

// Pointers to the K and V rows of up to 64 keys, and where each lies on the virtual axis.
struct KeyColumns {
  const char* rows[2 * kTileKeys];  // K rows, then V rows
  int nodes[kTileKeys];             // tree node, or -1 for a context key, which every row sees
  int offsets[kTileKeys];  // virtual key - first virtual key of the tile; c for context key c
  int num_context = 0;     // context keys come first
  int count = 0;

  const char* k_row(int c) const { return rows[c]; }
  const char* v_row(int c) const { return rows[kTileKeys + c]; }
  void add(const char* k_row, const char* v_row, int node, int offset) {
    rows[count] = k_row;
    rows[kTileKeys + count] = v_row;
    nodes[count] = node;
    offsets[count++] = offset;
  }
  // Whether columns are virtual keys already.
  bool in_order() const {
    bool same = true;
    for (int c = 0; c < count; ++c) same &= offsets[c] == c;
    return same;
  }
};

// The V rows of the steps of a value product, and the element of a row's weights that goes with
// each step.
template <class Step>
struct ValueSteps {
  const char* rows[kTileKeys][Step::kPerStep];
  int nodes[kTileKeys];  // deepest tree node of the step, or -1
  int source[kTileKeys];
  int num_context = 0;  // steps without a tree node come first
  int count = 0;

  void add(const char* const (&step_rows)[Step::kPerStep], int node, int from) {
    for (int i = 0; i < Step::kPerStep; ++i) rows[count][i] = step_rows[i];
    nodes[count] = node;
    source[count++] = from;
    if (node < 0) num_context = count;
  }
  // Whether weights by virtual key are weights by step already.
  bool in_order() const {
    bool same = true;
    for (int k = 0; k < count; ++k) same &= source[k] == k;
    return same;
  }
};

inline const char* row_of(const KvPool& pool, int64_t block, int64_t row, int head) {
  return static_cast<const char*>(pool.data) +
         kv_offset(pool, block, row, head) * element_size(pool.dtype);
}
inline const char* row_of(const KvPool& pool, int64_t slot, int head) {
  return row_of(pool, slot / pool.block_size, slot % pool.block_size, head);
}

// Adds context keys first .. first + count of a request, whose blocks `table` lists.
inline void add_context_keys(KeyColumns& columns, const KvPool& k_pool, const KvPool& v_pool,
                             const int32_t* table, int head, int first, int count) {
  const int block_size = k_pool.block_size;
  const int64_t k_step = k_pool.stride_row * element_size(k_pool.dtype);
  const int64_t v_step = v_pool.stride_row * element_size(v_pool.dtype);
  int block = first / block_size, row = first % block_size;
  for (int i = 0; i < count; ++block, row = 0) {
    const char* k_row = row_of(k_pool, table[block], row, head);
    const char* v_row = row_of(v_pool, table[block], row, head);
    for (const int end = min_int(count, i + block_size - row); i < end; ++i) {
      columns.add(k_row, v_row, -1, i);
      k_row += k_step;
      v_row += v_step;
    }
  }
  columns.num_context = columns.count;
}

inline int steps_of(FloatStep, int head_dim) { return head_dim; }

// to[0 .. padded) = q[0 .. size) * sign, zeros after
template <class T>
inline void load_query(float* to, const T* q, int size, int padded_size, float sign) {
  load_row(to, q, size, padded_size, sign);
}

// A square of the tile: keys first_key .., dims first_dim .., a key per Vec; keys past the last
// repeat it.
template <class T>
inline void load_square(FloatStep, const KeyColumns& columns, int head_dim, int first_key,
                        int first_dim, Vec (&square)[Vec::kLanes]) {
  const int num_dims = min_int(Vec::kLanes, head_dim - first_dim);
  for (int i = 0; i < Vec::kLanes; ++i) {
    const T* row =
        reinterpret_cast<const T*>(columns.k_row(min_int(first_key + i, columns.count - 1)));
    square[i] =
        num_dims == Vec::kLanes ? load(row + first_dim) : load_partial(row + first_dim, num_dims);
  }
}

template <class T>
inline Vec load_values(FloatStep, const char* const (&rows)[1], int first, int count) {
  const T* row = reinterpret_cast<const T*>(rows[0]) + first;
  return count >= Vec::kLanes ? load(row) : load_partial(row, count);
}

#if defined(__AVX512BF16__)
inline int steps_of(PairStep, int head_dim) { return (head_dim + 1) / 2; }

// The first `count` bf16 as pairs, 32 at most, zeros after.
inline Vec load_bf16_pairs(const BFloat16* p, int count) {
  const __mmask32 mask = count >= 32 ? ~0u : (1u << count) - 1;
  return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, p))};
}

// to[0 .. padded_size / 2) = pairs of q[0 .. size) * sign, exact for a sign of -1, 0 or 1; zeros
// after.
template <class T>
inline void load_query(uint32_t* to, const T* q, int size, int padded_size, float sign) {
  const auto* bits = reinterpret_cast<const BFloat16*>(q);
  const Vec factor = broadcast(sign);
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const int num_pairs = padded_size / 2;
  for (int k = 0; k < num_pairs; k += Vec::kLanes) {
    const __m512i pairs = _mm512_castps_si512(load_bf16_pairs(bits + 2 * k, size - 2 * k).v);
    const Vec low = Vec{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))} * factor;
    const Vec high = Vec{_mm512_castsi512_ps(_mm512_and_si512(pairs, high_half))} * factor;
    const __mmask16 kept = num_pairs - k >= Vec::kLanes ? 0xffffu : (1u << (num_pairs - k)) - 1;
    _mm512_mask_storeu_epi32(to + k, kept,
                             _mm512_or_si512(_mm512_castps_si512(high.v),
                                             _mm512_srli_epi32(_mm512_castps_si512(low.v), 16)));
  }
}

template <class T>
inline void load_square(PairStep, const KeyColumns& columns, int head_dim, int first_key,
                        int first_pair, Vec (&square)[Vec::kLanes]) {
  for (int i = 0; i < Vec::kLanes; ++i) {
    const auto* row =
        reinterpret_cast<const BFloat16*>(columns.k_row(min_int(first_key + i, columns.count - 1)));
    square[i] = load_bf16_pairs(row + 2 * first_pair, head_dim - 2 * first_pair);
  }
}

// Lane i: rows[0][first + i] in the low half, rows[1][first + i] in the high half.
template <class T>
inline Vec load_values(PairStep, const char* const (&rows)[2], int first, int count) {
  const __mmask16 mask = static_cast<__mmask16>(count >= Vec::kLanes ? 0xffffu : (1u << count) - 1);
  const auto load_half = [&](const char* row) {
    return _mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(mask, reinterpret_cast<const BFloat16*>(row) + first));
  };
  const __m512i high = _mm512_slli_epi32(load_half(rows[1]), 16);
  return {_mm512_castsi512_ps(_mm512_or_si512(load_half(rows[0]), high))};
}
#endif

inline constexpr int kPieceSteps = 4;

inline void store_elements(float* p, Vec a) { store(p, a); }
inline void store_elements(uint32_t* p, Vec a) { store(reinterpret_cast<float*>(p), a); }

// packed[panel][step][column] = the K rows, transposed; a piece for `prefetch` is a square
template <class Step>
inline void pack_keys(const KeyColumns& columns, const KvPool& pool, typename Step::Element* packed,
                      Prefetch& prefetch) {
  const int steps = steps_of(Step{}, pool.head_dim);
  with_element(pool.dtype, [&](auto element) {
    for (int c = 0; c < columns.count; c += Vec::kLanes) {
      typename Step::Element* const panel = packed + c / kPanel * panel_stride(steps) + c % kPanel;
      for (int k = 0; k < steps; k += Vec::kLanes) {
        Vec square[Vec::kLanes];
        load_square<decltype(element)>(Step{}, columns, pool.head_dim, c, k, square);
        transpose(square);
        const int num_steps = min_int(Vec::kLanes, steps - k);
        for (int i = 0; i < num_steps; ++i) store_elements(panel + (k + i) * kPanel, square[i]);
        prefetch.advance_by_piece();
      }
    }
  });
}

// packed[panel][step][column] = the V rows, zeros past head_dim; a piece for `prefetch` is
// kPieceSteps of them
template <class Step>
inline void pack_values(const ValueSteps<Step>& steps, const KvPool& pool,
                        typename Step::Element* packed, Prefetch& prefetch) {
  const int stride = panel_stride(steps.count);
  const int num_whole = pool.head_dim / Vec::kLanes;
  const int rest = pool.head_dim % Vec::kLanes;
  with_element(pool.dtype, [&](auto element) {
    using T = decltype(element);
    for (int k = 0; k < steps.count; ++k) {
      const auto place = [&](int vec) {
        return packed + vec / kVecBlock * stride + k * kPanel + vec % kVecBlock * Vec::kLanes;
      };
      for (int vec = 0; vec < num_whole; ++vec) {
        store_elements(place(vec),
                       load_values<T>(Step{}, steps.rows[k], vec * Vec::kLanes, Vec::kLanes));
      }
      if (rest > 0) {
        store_elements(place(num_whole),
                       load_values<T>(Step{}, steps.rows[k], num_whole * Vec::kLanes, rest));
      }
      if (k % kPieceSteps == 0) prefetch.advance_by_piece();
    }
  });
}

}  // namespace treeattn::cpu::TREEATTN_ISA
