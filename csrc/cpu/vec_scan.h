// SPDX-License-Identifier: Apache-2.0
// What scanning a row of logits needs beyond Vec: comparisons, compaction, and 16-bit floats
// compared as integers. Included by the sources of VECTOR_SOURCES only.
#pragma once

#include "cpu/vec.h"

namespace treeattn::cpu::TREEATTN_ISA {

// How far a 16-bit float lies above -inf, counted in floats, -0 and +0 being one. `bits` are sign
// and magnitude, as in bf16 and fp16; `infinity` is the magnitude of infinity. Whatever is not
// below +inf, NaN of both signs included, is 2 * infinity or more.
inline uint16_t rank(uint16_t bits, uint16_t infinity) {
  const int magnitude = bits & 0x7fff;
  return static_cast<uint16_t>((bits & 0x8000 ? -magnitude : magnitude) + infinity);
}

#if defined(__AVX512F__)

struct Mask {
  __mmask16 m;
};

inline Mask at_least(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask above(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask equal(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask operator&(Mask a, Mask b) { return {_kand_mask16(a.m, b.m)}; }
inline Mask without(Mask a, Mask b) { return {_kandn_mask16(b.m, a.m)}; }
inline Vec where(Mask m, Vec a) { return {_mm512_maskz_mov_ps(m.m, a.v)}; }  // 0 elsewhere
inline uint32_t bits(Mask m) { return m.m; }
// Writes kLanes floats, the chosen ones first.
inline void compress(float* out, Mask m, Vec a) {
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps(m.m, a.v));
}

inline Vec add_exponent(Vec a, Vec n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), exponent))};
}

struct Words {
  static constexpr int kLanes = 32;
  __m512i v;
};

inline Words broadcast(uint16_t x) { return {_mm512_set1_epi16(static_cast<int16_t>(x))}; }
inline Words load_ranks(const uint16_t* p, Words infinity) {
  const __m512i x = _mm512_loadu_si512(p);
  const __m512i sign = _mm512_set1_epi16(INT16_MIN);
  const __m512i ordered = _mm512_mask_sub_epi16(x, _mm512_movepi16_mask(x), sign, x);
  return {_mm512_add_epi16(ordered, infinity.v)};
}
inline Words max(Words a, Words b) { return {_mm512_max_epu16(a.v, b.v)}; }
inline uint32_t equal_bits(Words a, Words b) { return _mm512_cmpeq_epi16_mask(a.v, b.v); }
inline void store(uint16_t* p, Words a) { _mm512_storeu_si512(p, a.v); }

#elif defined(__AVX2__)

struct Mask {
  __m256 m;
};

inline Mask at_least(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask above(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask equal(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.m, b.m)}; }
inline Mask without(Mask a, Mask b) { return {_mm256_andnot_ps(b.m, a.m)}; }
inline Vec where(Mask m, Vec a) { return {_mm256_and_ps(m.m, a.v)}; }
inline uint32_t bits(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.m)); }

// For each set of lanes the lanes that it holds, ascending, one byte each.
struct CompressOrder {
  uint64_t lanes[256];
};
constexpr CompressOrder compress_order() {
  CompressOrder order{};
  for (int set = 0; set < 256; ++set) {
    int count = 0;
    for (uint64_t lane = 0; lane < 8; ++lane) {
      if (set >> lane & 1) order.lanes[set] |= lane << 8 * count++;
    }
  }
  return order;
}
constexpr CompressOrder kCompressOrder = compress_order();

inline void compress(float* out, Mask m, Vec a) {
  const auto* const lanes = reinterpret_cast<const __m128i*>(&kCompressOrder.lanes[bits(m)]);
  const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(lanes));
  _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(a.v, order));
}

inline Vec add_exponent(Vec a, Vec n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(n.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), exponent))};
}

struct Words {
  static constexpr int kLanes = 16;
  __m256i v;
};

inline Words broadcast(uint16_t x) { return {_mm256_set1_epi16(static_cast<int16_t>(x))}; }
inline Words load_ranks(const uint16_t* p, Words infinity) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(INT16_MAX));
  return {_mm256_add_epi16(_mm256_sign_epi16(magnitude, x), infinity.v)};
}
inline Words max(Words a, Words b) { return {_mm256_max_epu16(a.v, b.v)}; }
inline uint32_t equal_bits(Words a, Words b) {
  const __m256i equal = _mm256_cmpeq_epi16(a.v, b.v);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(equal), _mm256_extracti128_si256(equal, 1));
  return static_cast<uint32_t>(_mm_movemask_epi8(bytes));
}
inline void store(uint16_t* p, Words a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }

#else

struct Mask {
  int32_t m[Vec::kLanes];  // 0 or -1
};

template <class F>
inline Mask mask_lanewise(F&& f) {
  Mask r;
  for (int i = 0; i < Vec::kLanes; ++i) r.m[i] = -static_cast<int32_t>(f(i));
  return r;
}
inline Mask at_least(Vec a, Vec b) {
  return mask_lanewise([&](int i) { return a.v[i] >= b.v[i]; });
}
inline Mask above(Vec a, Vec b) {
  return mask_lanewise([&](int i) { return a.v[i] > b.v[i]; });
}
inline Mask equal(Vec a, Vec b) {
  return mask_lanewise([&](int i) { return a.v[i] == b.v[i]; });
}
inline Mask operator&(Mask a, Mask b) {
  return mask_lanewise([&](int i) { return (a.m[i] & b.m[i]) != 0; });
}
inline Mask without(Mask a, Mask b) {
  return mask_lanewise([&](int i) { return (a.m[i] & ~b.m[i]) != 0; });
}
inline Vec where(Mask m, Vec a) {
  return lanewise([&](int i) { return m.m[i] ? a.v[i] : 0.0f; });
}
inline uint32_t bits(Mask m) {
  uint32_t set = 0;
  for (int i = 0; i < Vec::kLanes; ++i) set |= static_cast<uint32_t>(m.m[i] & 1) << i;
  return set;
}
inline void compress(float* out, Mask m, Vec a) {
  for (int i = 0; i < Vec::kLanes; ++i) {
    *out = a.v[i];
    out += m.m[i] & 1;
  }
}

inline Vec add_exponent(Vec a, Vec n) {
  return lanewise([&](int i) {
    const uint32_t exponent = __builtin_bit_cast(uint32_t, n.v[i]) << 23;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, a.v[i]) + exponent);
  });
}

struct Words {
  static constexpr int kLanes = 16;
  uint16_t v[kLanes];
};

template <class F>
inline Words words_lanewise(F&& f) {
  Words r;
  for (int i = 0; i < Words::kLanes; ++i) r.v[i] = f(i);
  return r;
}
inline Words broadcast(uint16_t x) {
  return words_lanewise([&](int) { return x; });
}
inline Words load_ranks(const uint16_t* p, Words infinity) {
  return words_lanewise([&](int i) { return rank(p[i], infinity.v[i]); });
}
inline Words max(Words a, Words b) {
  return words_lanewise([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline uint32_t equal_bits(Words a, Words b) {
  uint32_t set = 0;
  for (int i = 0; i < Words::kLanes; ++i) {
    set |= static_cast<uint32_t>(a.v[i] == b.v[i]) << i;
  }
  return set;
}
inline void store(uint16_t* p, Words a) { std::memcpy(p, a.v, sizeof a.v); }

#endif

inline uint16_t reduce_max(Words a) {
  uint16_t lanes[Words::kLanes];
  store(lanes, a);
  uint16_t m = lanes[0];
  for (uint16_t lane : lanes) m = lane > m ? lane : m;
  return m;
}

// 2^(a * b) for a * b <= 0: exactly 1 at 0, 0 below 2^-125; relative error below 2 ulp beyond that
// of b. 2^n by the exponent bits, 2^f with |f| <= 1/2 by a minimax polynomial of degree 5.
inline Vec exp2_product(Vec a, Vec b) {
  // Adding it rounds to an integer n and leaves n in the low bits.
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const Vec shifted = fma(a, b, broadcast(kRound));
  const Vec minus_n = broadcast(kRound) - shifted;
  const Vec f = fma(a, b, minus_n);
  Vec e = fma(f, broadcast(1.326472725e-03f), broadcast(9.671512786e-03f));
  e = fma(f, e, broadcast(5.550733744e-02f));
  e = fma(f, e, broadcast(2.402224208e-01f));
  e = fma(f, e, broadcast(6.931469776e-01f));
  e = fma(f, e, broadcast(1.0f));
  return where(at_least(shifted, broadcast(kRound - 125.0f)), add_exponent(e, shifted));
}

}  // namespace treeattn::cpu::TREEATTN_ISA
