// SPDX-License-Identifier: Apache-2.0
#include "simt/matrix.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "simt/convert.h"

namespace treeattn::simt {
namespace {

constexpr uint32_t kAllLanes = 0xffffffff;
constexpr int kM = 16, kN = 8, kK = 16;
constexpr int kRowBytes = 16, kMatrixRows = 8, kNumMatrices = 4;

struct Tile {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

float bf16_to_float(uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); }

// Products are exact in fp32; each sum runs over k in order, on top of d.
template <float (*kToFloat)(uint16_t)>
void multiply(void* const* brought, uint32_t, const Site&) {
  float a[kM][kK], b[kK][kN], d[kM][kN];
  const auto put = [](float* lo, float* hi, uint32_t pair) {
    *lo = kToFloat(static_cast<uint16_t>(pair));
    *hi = kToFloat(static_cast<uint16_t>(pair >> 16));
  };
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const Tile& tile = *static_cast<const Tile*>(brought[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8, column = t + i / 2 * 8;
      put(&a[row][column], &a[row][column + 1], tile.a[i]);
      d[g + i / 2 * 8][t + i % 2] = tile.d[i];
    }
    for (int i = 0; i < 2; ++i) put(&b[t + i * 8][g], &b[t + i * 8 + 1][g], tile.b[i]);
  }
  for (int m = 0; m < kM; ++m) {
    for (int k = 0; k < kK; ++k) {
      for (int n = 0; n < kN; ++n) d[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const Tile& tile = *static_cast<const Tile*>(brought[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) tile.d[i] = d[g + i / 2 * 8][t + i % 2];
  }
  ++counters.mma;
}

struct Rows {
  uint32_t* r;
  const char* row;
};

// Shared memory serves eight rows at once if they lie in different groups of four banks, or are
// the same row; each further row of a group costs another pass.
int extra_passes(const char* const* rows) {
  int most = 1;
  for (int i = 0; i < kMatrixRows; ++i) {
    const auto group = [](const char* row) {
      return reinterpret_cast<uintptr_t>(row) / kRowBytes % kMatrixRows;
    };
    int in_group = 0;
    for (int j = 0; j < kMatrixRows; ++j) {
      if (group(rows[j]) != group(rows[i])) continue;
      if (std::find(rows, rows + j, rows[j]) == rows + j) ++in_group;
    }
    most = std::max(most, in_group);
  }
  return most - 1;
}

template <bool kTransposed>
void load_matrices(void* const* brought, uint32_t, const Site&) {
  for (int matrix = 0; matrix < kNumMatrices; ++matrix) {
    const char* rows[kMatrixRows];
    uint16_t elements[kMatrixRows][kMatrixRows];
    for (int row = 0; row < kMatrixRows; ++row) {
      rows[row] = static_cast<const Rows*>(brought[matrix * kMatrixRows + row])->row;
      std::memcpy(elements[row], rows[row], kRowBytes);
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      const uint16_t lo = kTransposed ? elements[t][g] : elements[g][t];
      const uint16_t hi = kTransposed ? elements[t + 1][g] : elements[g][t + 1];
      static_cast<const Rows*>(brought[lane])->r[matrix] = lo | uint32_t{hi} << 16;
    }
    counters.ldmatrix_conflicts += extra_passes(rows);
  }
  ++counters.ldmatrix;
}

}  // namespace

void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, bool is_bf16, const Site& site) {
  Tile tile{d, a, b};
  meet("mma_m16n8k16", kAllLanes, is_bf16 ? multiply<bf16_to_float> : multiply<half_to_float>,
       &tile, site);
}

void ldmatrix_x4(uint32_t* r, const void* shared_row, bool transposed, const Site& site) {
  check_aligned_16("ldmatrix_x4", shared_row, site);
  if (!in_shared(shared_row, kRowBytes)) fail(site, "ldmatrix_x4: row not in shared memory");
  Rows rows{r, static_cast<const char*>(shared_row)};
  meet("ldmatrix_x4", kAllLanes, transposed ? load_matrices<true> : load_matrices<false>, &rows,
       site);
}

void check_aligned_16(const char* what, const void* pointer, const Site& site) {
  const auto rest = reinterpret_cast<uintptr_t>(pointer) % 16;
  if (rest != 0) {
    fail(site,
         std::string(what) + ": must be aligned to 16 bytes, is " + std::to_string(rest) + " past");
  }
}

void check_global_16(const char* what, const void* pointer, const Site& site) {
  check_aligned_16(what, pointer, site);
  if (!outside_shared(pointer, 16)) fail(site, std::string(what) + ": must be in global memory");
}

}  // namespace treeattn::simt
