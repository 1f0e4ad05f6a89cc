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
    std::memcpy(k_rows, columns.rows + skipped, sizeof(char*) * count);
    std::memcpy(v_rows, columns.rows + kTileKeys + skipped, sizeof(char*) * count);
  }
};

inline constexpr int kPathRows = Vec::kLanes == 16 ? 4 : 3;

// Keys of one block: as many accumulators as hide the latency of a multiply-add.
constexpr int path_keys(int num_rows) { return num_rows == 1 ? 6 : num_rows == 2 ? 4 : kPathRows; }

// scores[r][k] = q[r] . keys[k]: one sum per lane, then the lanes
template <class T, int kRows, int kKeys>
inline void score_path_block(const float* q, int padded_dim, const char* const* keys, int head_dim,
                             float* scores) {
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
      const Vec q_r = load(q + r * padded_dim + d);
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
inline void score_path(const float* q, int padded_dim, int num_rows, const PathKeys& path,
                       int head_dim, float* scores) {
  for (int row = 0; row < num_rows; row += kPathRows) {
    const int rows = num_rows - row < kPathRows ? num_rows - row : kPathRows;
    with_count<kPathRows>(rows, [&](auto row_count) {
      constexpr int kRows = decltype(row_count)::value;
      constexpr int kKeys = path_keys(kRows);
      for (int k = 0; k < path.count; k += kKeys) {
        const int keys = path.count - k < kKeys ? path.count - k : kKeys;
        with_count<kKeys>(keys, [&](auto key_count) {
          score_path_block<T, kRows, decltype(key_count)::value>(q + row * padded_dim, padded_dim,
                                                                 path.k_rows + k, head_dim,
                                                                 scores + row * kTileKeys + k);
        });
      }
    });
  }
}

// out[r] = out[r] * rescale[r] + sum over keys of weights[r][k] * values[k]
template <class T, int kRows, int kVecs>
inline void value_path_block(const float* weights, const PathKeys& path, int first_dim,
                             const float* rescale, float* out, int padded_dim) {
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) {
      sum[r][c] = load(out + r * padded_dim + c * Vec::kLanes) * broadcast(rescale[r]);
    }
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
    for (int c = 0; c < kVecs; ++c) store(out + r * padded_dim + c * Vec::kLanes, sum[r][c]);
  }
}

// The columns past the last whole vector, zeros after head_dim.
template <class T>
inline void value_path_rest(const float* weights, int num_rows, const PathKeys& path, int first_dim,
                            int count, const float* rescale, float* out, int padded_dim) {
  for (int r = 0; r < num_rows; ++r) {
    Vec sum = load(out + r * padded_dim) * broadcast(rescale[r]);
    for (int k = 0; k < path.count; ++k) {
      const Vec v = load_partial(reinterpret_cast<const T*>(path.v_rows[k]) + first_dim, count);
      sum = fma(broadcast(weights[r * kTileKeys + k]), v, sum);
    }
    store(out + r * padded_dim, sum);
  }
}

template <class T>
inline void value_path(const float* weights, int num_rows, const PathKeys& path, int head_dim,
                       const float* rescale, float* out, int padded_dim) {
  constexpr int kVecs = 4;
  const int num_vecs = head_dim / Vec::kLanes;
  for (int row = 0; row < num_rows; row += kPathRows) {
    const int rows = num_rows - row < kPathRows ? num_rows - row : kPathRows;
    const float* w = weights + row * kTileKeys;
    float* const o = out + row * padded_dim;
    with_count<kPathRows>(rows, [&](auto row_count) {
      for (int vec = 0; vec < num_vecs; vec += kVecs) {
        const int d = vec * Vec::kLanes;
        const int vecs = num_vecs - vec < kVecs ? num_vecs - vec : kVecs;
        with_count<kVecs>(vecs, [&](auto vec_count) {
          value_path_block<T, decltype(row_count)::value, decltype(vec_count)::value>(
              w, path, d, rescale + row, o + d, padded_dim);
        });
      }
    });
    const int rest = head_dim % Vec::kLanes, d = num_vecs * Vec::kLanes;
    if (rest > 0) value_path_rest<T>(w, rows, path, d, rest, rescale + row, o + d, padded_dim);
  }
}

}  // namespace treeattn::cpu::TREEATTN_ISA
