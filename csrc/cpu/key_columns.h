// SPDX-License-Identifier: Apache-2.0
// The keys of one attention product, packed for it. Included by VECTOR_SOURCES only.
#pragma once

#include "cpu/attention_gemm.h"
#include "cpu/convert.h"
#include "cpu/transpose.h"
#include "treeattn/paged_kv.h"

namespace treeattn::cpu::TREEATTN_ISA {

inline int min_int(int a, int b) { return a < b ? a : b; }
inline int max_int(int a, int b) { return a > b ? a : b; }
inline int padded(int size) { return (size + Vec::kLanes - 1) / Vec::kLanes * Vec::kLanes; }

// Pointers to the K and V rows of up to 64 keys, and where each lies on the virtual axis.
struct KeyColumns {
  const char* k_rows[kTileKeys];
  const char* v_rows[kTileKeys];
  int nodes[kTileKeys];    // tree node, or -1 for a context key, which every row sees
  int offsets[kTileKeys];  // virtual key - first virtual key of the tile; c for context key c
  int num_context = 0;     // context keys come first
  int count = 0;

  void add(const char* k_row, const char* v_row, int node, int offset) {
    k_rows[count] = k_row;
    v_rows[count] = v_row;
    nodes[count] = node;
    offsets[count++] = offset;
  }
};

inline const char* row_of(const KvPool& pool, int64_t slot, int head) {
  return static_cast<const char*>(pool.data) +
         kv_offset(pool, slot, head) * element_size(pool.dtype);
}

// k_transposed[d][c] = K row of column c, as floats; columns past `count` repeat the last one.
inline void pack_keys(const KeyColumns& columns, const KvPool& pool, float* k_transposed) {
  with_element(pool.dtype, [&](auto element) {
    using T = decltype(element);
    for (int c = 0; c < columns.count; c += Vec::kLanes) {
      const int num_keys = min_int(Vec::kLanes, columns.count - c);
      for (int d = 0; d < pool.head_dim; d += Vec::kLanes) {
        const int num_dims = min_int(Vec::kLanes, pool.head_dim - d);
        Vec square[Vec::kLanes];
        for (int i = 0; i < Vec::kLanes; ++i) {
          const T* row = reinterpret_cast<const T*>(columns.k_rows[c + min_int(i, num_keys - 1)]);
          square[i] = num_dims == Vec::kLanes ? load(row + d) : load_partial(row + d, num_dims);
        }
        transpose(square);
        for (int i = 0; i < num_dims; ++i) store(k_transposed + (d + i) * kTileKeys + c, square[i]);
      }
    }
  });
}

// Rows of V as floats, read in place where they already are.
inline void pack_values(const KeyColumns& columns, const KvPool& pool, float* packed,
                        const float** rows) {
  const int padded_dim = padded(pool.head_dim);
  const bool in_place = pool.dtype == DType::kFloat32 && pool.head_dim == padded_dim;
  with_element(pool.dtype, [&](auto element) {
    using T = decltype(element);
    for (int c = 0; c < columns.count; ++c) {
      rows[c] = reinterpret_cast<const float*>(columns.v_rows[c]);
      if (in_place) continue;
      load_row(packed + c * padded_dim, reinterpret_cast<const T*>(columns.v_rows[c]),
               pool.head_dim, padded_dim, 1.0f);
      rows[c] = packed + c * padded_dim;
    }
  });
}

inline bool all_rows_finite(const float* const* rows, int count, int padded_dim) {
  bool finite = true;
  for (int c = 0; c < count; ++c) {
    for (int d = 0; d < padded_dim; d += Vec::kLanes) finite &= all_finite(load(rows[c] + d));
  }
  return finite;
}

}  // namespace treeattn::cpu::TREEATTN_ISA
