// SPDX-License-Identifier: Apache-2.0
// The two products of attention for the few rows of one node and the keys of its own path, read in
// place: nothing is packed, and no key is touched that the node does not see. Included by
// VECTOR_SOURCES only.
#pragma once

#include "cpu/key_tile.h"

namespace treeattn::cpu::TREEATTN_ISA {

// The last keys of one node: up to 64 virtual keys that end with the node itself.
struct PathKeys {
  const char* k_rows[kTileKeys];
  const char* v_rows[kTileKeys];
  int first = 0;  // virtual key of row 0
  int count = 0;

  // The columns of a tile from `skipped` on.
  void take(const KeyColumns& columns, int skipped) {
    first = skipped;
    count = columns.count - skipped;
    copy_pointers(columns.rows + skipped, k_rows);
    copy_pointers(columns.rows + kTileKeys + skipped, v_rows);
  }

 private:
  // In pieces of fixed size, which need no call: most paths are short.
  void copy_pointers(const char* const* from, const char** to) const {
    constexpr int kPiece = 4;
    int i = 0;
    for (; i + kPiece <= count; i += kPiece) std::memcpy(to + i, from + i, sizeof(char*) * kPiece);
    for (; i < count; ++i) to[i] = from[i];
  }
};

// The heads of one node as floats, zeros past head_dim.
struct QueryRows {
  const float* data;
  int64_t stride;
};

// A block takes up to four rows, and as many keys (or vectors of V) as leave accumulators and
// operands in registers.
inline constexpr int kPathRows = 4;
constexpr int path_keys(int num_rows) {
  constexpr int kOf16[] = {6, 4, 3, 2}, kOf32[] = {6, 6, 4, 4};
  return (Vec::kLanes == 16 ? kOf32 : kOf16)[num_rows - 1];
}
constexpr int path_vecs(int num_rows) { return Vec::kLanes == 16 || num_rows < 4 ? 4 : 2; }

// Calls f(first row, Count<rows>) for blocks of rows that are as equal as can be.
template <class F>
inline void for_each_path_rows(int num_rows, F&& f) {
  for (int row = 0; row < num_rows;) {
    const int left = num_rows - row;
    const int rows = left <= kPathRows ? left : left < 2 * kPathRows ? (left + 1) / 2 : kPathRows;
    with_count<kPathRows>(rows, [&](auto count) { f(row, count); });
    row += rows;
  }
}

// scores[r][k] = q[r] . keys[k]: one sum per lane, then the lanes
template <class T, int kRows, int kKeys>
inline void score_path_block(const QueryRows& queries, int row, const char* const* keys,
                             int head_dim, float* scores) {
  Vec sum[kRows][kKeys];
#pragma GCC unroll 8
  for (auto& sums : sum) {
#pragma GCC unroll 8
    for (Vec& vec : sums) vec = broadcast(0.0f);
  }
  const auto add = [&](int d, auto&& load_key) __attribute__((always_inline)) {
    Vec k[kKeys];
#pragma GCC unroll 8
    for (int c = 0; c < kKeys; ++c) k[c] = load_key(reinterpret_cast<const T*>(keys[c]) + d);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec q_r = load(queries.data + (row + r) * queries.stride + d);
#pragma GCC unroll 8
      for (int c = 0; c < kKeys; ++c) sum[r][c] = fma(q_r, k[c], sum[r][c]);
    }
  };
  int d = 0;
  for (; d + Vec::kLanes <= head_dim; d += Vec::kLanes) {
    add(d, [](const T* p) { return load(p); });
  }
  if (d < head_dim) add(d, [&](const T* p) { return load_partial(p, head_dim - d); });
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kKeys; ++c) scores[r * kTileKeys + c] = reduce_add(sum[r][c]);
  }
}

template <class T>
inline void score_path(const QueryRows& queries, int num_rows, const PathKeys& path, int head_dim,
                       float* scores) {
  for_each_path_rows(num_rows, [&](int row, auto rows) {
    constexpr int kRows = decltype(rows)::value;
    constexpr int kKeys = path_keys(kRows);
    for (int k = 0; k < path.count; k += kKeys) {
      const int count = path.count - k < kKeys ? path.count - k : kKeys;
      with_count<kKeys>(count, [&](auto keys) {
        score_path_block<T, kRows, decltype(keys)::value>(queries, row, path.k_rows + k, head_dim,
                                                          scores + row * kTileKeys + k);
      });
    }
  });
}

// Where value_path finds what rows have gathered before, and leaves the sum.
// Rows that gather more later: out[r] * rescale[r] becomes the sum.
struct GatheredRows {
  float* out;
  int stride;
  const float* rescale;

  GatheredRows from_row(int row) const { return {out + row * stride, stride, rescale + row}; }
  Vec begin(int r, int d) const { return load(out + r * stride + d) * broadcast(rescale[r]); }
  void finish(int r, int d, Vec sum) const { store(out + r * stride + d, sum); }
};

// Rows that have gathered nothing.
struct FreshRows {
  float* out;
  int stride;

  FreshRows from_row(int row) const { return {out + row * stride, stride}; }
  Vec begin(int, int) const { return broadcast(0.0f); }
  void finish(int r, int d, Vec sum) const { store(out + r * stride + d, sum); }
};

// rows[r] = what r has gathered + sum over keys of weights[r][k] * values[k]
template <class T, int kRows, int kVecs, class Rows>
inline void value_path_block(const float* weights, const PathKeys& path, int first_dim,
                             const Rows& rows) {
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) sum[r][c] = rows.begin(r, first_dim + c * Vec::kLanes);
  }
  for (int k = 0; k < path.count; ++k) {
    const T* v = reinterpret_cast<const T*>(path.v_rows[k]) + first_dim;
    Vec v_k[kVecs];
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) v_k[c] = load(v + c * Vec::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(weights[r * kTileKeys + k]);
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) sum[r][c] = fma(weight, v_k[c], sum[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) rows.finish(r, first_dim + c * Vec::kLanes, sum[r][c]);
  }
}

// The columns past the last whole vector, zeros after head_dim.
template <class T, class Rows>
inline void value_path_rest(const float* weights, int num_rows, const PathKeys& path, int first_dim,
                            int count, const Rows& rows) {
  for (int r = 0; r < num_rows; ++r) {
    Vec sum = rows.begin(r, first_dim);
    for (int k = 0; k < path.count; ++k) {
      const Vec v = load_partial(reinterpret_cast<const T*>(path.v_rows[k]) + first_dim, count);
      sum = fma(broadcast(weights[r * kTileKeys + k]), v, sum);
    }
    rows.finish(r, first_dim, sum);
  }
}

template <class T, class Rows>
inline void value_path(const float* weights, int num_rows, const PathKeys& path, int head_dim,
                       const Rows& all_rows) {
  const int num_vecs = head_dim / Vec::kLanes;
  const int rest = head_dim % Vec::kLanes;
  for_each_path_rows(num_rows, [&](int row, auto row_count) {
    constexpr int kRows = decltype(row_count)::value;
    constexpr int kVecs = path_vecs(kRows);
    const float* w = weights + row * kTileKeys;
    const Rows rows = all_rows.from_row(row);
    for (int vec = 0; vec < num_vecs; vec += kVecs) {
      const int count = num_vecs - vec < kVecs ? num_vecs - vec : kVecs;
      with_count<kVecs>(count, [&](auto vecs) {
        value_path_block<T, kRows, decltype(vecs)::value>(w, path, vec * Vec::kLanes, rows);
      });
    }
    if (rest > 0) value_path_rest<T>(w, kRows, path, num_vecs * Vec::kLanes, rest, rows);
  });
}

}  // namespace treeattn::cpu::TREEATTN_ISA
