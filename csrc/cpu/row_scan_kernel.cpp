// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_scan_kernel.h"

#include "cpu/row_weigh_kernel.h"
#include "cpu/vec_scan.h"

namespace treeattn::cpu::TREEATTN_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
// Logits between two looks at the maximum: the place of the best is searched in one such piece.
constexpr int kTopPiece = 4096;
// Bytes to fetch ahead: the loops take a cache line in some three cycles, and rows begin cold.
constexpr int kAhead = 2048;

inline void prefetch(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + kAhead); }

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

// A row of floats: comparisons with +inf are false for it and for NaN alone.
struct FloatRow {
  using Key = float;
  static constexpr Key kLowest = -kInfinity;
  const float* x;

  struct Peak {
    Key max;
    bool finite;
  };
  Peak peak(int begin, int count) const {
    const Vec infinity = broadcast(kInfinity);
    Vec max0 = broadcast(-kInfinity), max1 = max0, max2 = max0, max3 = max0;
    Mask below0 = above(infinity, max0), below1 = below0;
    const float* p = x + begin;
    const auto take = [&](Vec v, Vec& highest, Mask& below) {
      highest = max(v, highest);  // the second argument wins against NaN
      below = below & above(infinity, v);
    };
    int left = count;
    for (; left >= 4 * Vec::kLanes; left -= 4 * Vec::kLanes, p += 4 * Vec::kLanes) {
      for (int line = 0; line < 4 * Vec::kLanes; line += 16) prefetch(p + line);
      take(load(p), max0, below0);
      take(load(p + Vec::kLanes), max1, below1);
      take(load(p + 2 * Vec::kLanes), max2, below0);
      take(load(p + 3 * Vec::kLanes), max3, below1);
    }
    for (; left >= Vec::kLanes; left -= Vec::kLanes, p += Vec::kLanes) take(load(p), max0, below0);
    if (left > 0) {
      float lanes[Vec::kLanes];
      for (int i = 0; i < Vec::kLanes; ++i) lanes[i] = i < left ? p[i] : -kInfinity;
      take(load(lanes), max1, below1);
    }
    const uint32_t all = (1u << Vec::kLanes) - 1;
    return {.max = reduce_max(max(max(max0, max1), max(max2, max3))),
            .finite = bits(below0 & below1) == all};
  }
  int find(int begin, int count, Key key) const {
    const Vec wanted = broadcast(key);
    int i = begin;
    for (; i + Vec::kLanes <= begin + count; i += Vec::kLanes) {
      const uint32_t hits = bits(equal(load(x + i), wanted));
      if (hits != 0) return i + __builtin_ctz(hits);
    }
    while (x[i] != key) ++i;
    return i;
  }
  static float value(Key key) { return key; }
};

// A row of 16-bit floats, compared as integers without widening them.
template <class T, uint16_t kInfinityBits>
struct WordRow {
  using Key = uint16_t;
  static constexpr Key kLowest = 0;
  const uint16_t* x;

  struct Peak {
    Key max;
    bool finite;
  };
  Peak peak(int begin, int count) const {
    const Words infinity = broadcast(kInfinityBits);
    Words max0 = broadcast(kLowest), max1 = max0;
    const uint16_t* p = x + begin;
    int left = count;
    for (; left >= 2 * Words::kLanes; left -= 2 * Words::kLanes, p += 2 * Words::kLanes) {
      for (int line = 0; line < 2 * Words::kLanes; line += 32) prefetch(p + line);
      max0 = max(max0, load_ranks(p, infinity));
      max1 = max(max1, load_ranks(p + Words::kLanes, infinity));
    }
    if (left >= Words::kLanes) {
      max0 = max(max0, load_ranks(p, infinity));
      left -= Words::kLanes;
      p += Words::kLanes;
    }
    Key highest = reduce_max(max(max0, max1));
    for (int i = 0; i < left; ++i) {
      const Key key = rank(p[i], kInfinityBits);
      highest = key > highest ? key : highest;
    }
    return {.max = highest, .finite = highest < 2 * kInfinityBits};
  }
  int find(int begin, int count, Key key) const {
    const Words infinity = broadcast(kInfinityBits), wanted = broadcast(key);
    int i = begin;
    for (; i + Words::kLanes <= begin + count; i += Words::kLanes) {
      const uint32_t hits = equal_bits(load_ranks(x + i, infinity), wanted);
      if (hits != 0) return i + __builtin_ctz(hits);
    }
    while (rank(x[i], kInfinityBits) != key) ++i;
    return i;
  }
  static float value(Key key) {
    const int ordered = key - kInfinityBits;
    const int bits = ordered < 0 ? 0x8000 - ordered : ordered;
    return to_float(T{static_cast<uint16_t>(bits)});
  }
};

// Calls f with `x` as a row that knows its order.
template <class F>
auto with_row(const void* x, DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) {
    return f(WordRow<BFloat16, 0x7f80>{static_cast<const uint16_t*>(x)});
  }
  if (dtype == DType::kFloat16) {
    return f(WordRow<Float16, 0x7c00>{static_cast<const uint16_t*>(x)});
  }
  return f(FloatRow{static_cast<const float*>(x)});
}

RowPeak peak(const void* x, DType dtype, int count) {
  return with_row(x, dtype, [&](auto row) {
    const auto peak = row.peak(0, count);
    return RowPeak{.max = row.value(peak.max), .finite = peak.finite};
  });
}

RowTop top(const void* x, DType dtype, int count) {
  return with_row(x, dtype, [&](auto row) {
    auto best = row.kLowest;
    int best_begin = -1;
    for (int begin = 0; begin < count; begin += kTopPiece) {
      const auto peak = row.peak(begin, count - begin < kTopPiece ? count - begin : kTopPiece);
      if (!peak.finite) return RowTop{.index = -1, .finite = false};
      if (peak.max <= best) continue;
      best = peak.max;
      best_begin = begin;
    }
    if (best_begin < 0) return RowTop{.index = -1, .finite = true};
    const int left = count - best_begin;
    return RowTop{.index = row.find(best_begin, left < kTopPiece ? left : kTopPiece, best),
                  .finite = true};
  });
}

}  // namespace

RowScan row_scan() {
  return {.load = load_row,
          .top = top,
          .peak = peak,
          .weigh = weigh,
          .mass = mass,
          .split = split,
          .keep = keep,
          .scale = scale,
          .subtract = subtract,
          .sum = sum,
          .depth_sum = depth_sum};
}

}  // namespace treeattn::cpu::TREEATTN_ISA
