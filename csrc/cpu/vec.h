// SPDX-License-Identifier: Apache-2.0
// One vector of floats in the instruction set that this file is compiled for. Included by the
// sources of VECTOR_SOURCES only (see CMakeLists.txt): no C++ library templates in here.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace treeattn::cpu::TREEATTN_ISA {

#if defined(__AVX512F__)

struct Vec {
  static constexpr int kLanes = 16;
  __m512 v;
};

inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline bool all_finite(Vec a) {
  // x * 0 is 0 for finite x and NaN otherwise.
  const __m512 zero = _mm512_mul_ps(a.v, _mm512_setzero_ps());
  return _mm512_cmp_ps_mask(zero, zero, _CMP_ORD_Q) == 0xffff;
}
inline Vec round_to_int(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n, where a * 2^n = e^x: 0 once e^x leaves the range of normal floats.
inline Vec scale_by_power(Vec a, Vec n, Vec) { return {_mm512_scalef_ps(a.v, n.v)}; }
// The exponent of 2^x: x rounded to an integer.
struct Exponent {
  Vec integral;
};
inline Exponent split_exponent(Vec x) { return {round_to_int(x)}; }
inline Vec scale_by_exponent(Vec a, Exponent n) { return {_mm512_scalef_ps(a.v, n.integral.v)}; }
inline constexpr float kLeastExponent = -150.0f;  // 2^-150 rounds to 0
inline Vec load_bf16(const uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline Vec load_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Rounds to nearest even; a NaN becomes a quiet NaN.
inline void store_bf16(uint16_t* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
}
inline void store_fp16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__AVX2__)

struct Vec {
  static constexpr int kLanes = 8;
  __m256 v;
};

inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline float reduce_max(Vec a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline float reduce_add(Vec a) {
  __m128 m = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  m = _mm_add_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}
inline bool all_finite(Vec a) {
  const __m256 zero = _mm256_mul_ps(a.v, _mm256_setzero_ps());
  return _mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_ORD_Q)) == 0xff;
}
inline Vec round_to_int(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec scale_by_power(Vec a, Vec n, Vec x) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23);
  const __m256 scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), exponent));
  const __m256 in_range = _mm256_cmp_ps(x.v, _mm256_set1_ps(-87.0f), _CMP_NLT_UQ);  // keeps NaN
  return {_mm256_and_ps(scaled, in_range)};
}
// The exponent of 2^x: x rounded to an integer, and 2^n as bits. Adding 1.5 * 2^23 leaves the
// integer in the low bits of the sum; the 127 more make it a biased exponent.
struct Exponent {
  Vec integral, power;
};
inline constexpr float kLeastExponent = -127.0f;  // the biased exponent 0: the bits of 0
inline Exponent split_exponent(Vec x) {
  const Vec magic = broadcast(12582912.0f + 127.0f);
  const Vec shifted = x + magic;
  return {shifted - magic,
          {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23))}};
}
inline Vec scale_by_exponent(Vec a, Exponent n) { return a * n.power; }
inline Vec load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline Vec load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Rounds to nearest even; a NaN becomes a quiet NaN.
inline void store_bf16(uint16_t* p, Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m256i packed = _mm256_packus_epi32(high, high);  // each 128-bit half twice
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
inline void store_fp16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

#else

// Plain C++ that a compiler can vectorise for any target.
struct Vec {
  static constexpr int kLanes = 8;
  float v[kLanes];
};

template <class F>
inline Vec lanewise(F&& f) {
  Vec r;
  for (int i = 0; i < Vec::kLanes; ++i) r.v[i] = f(i);
  return r;
}
inline Vec broadcast(float x) {
  return lanewise([&](int) { return x; });
}
inline Vec load(const float* p) {
  return lanewise([&](int i) { return p[i]; });
}
inline void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
inline Vec operator+(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec operator-(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec operator*(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec operator/(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] / b.v[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__FP_FAST_FMAF)
  return lanewise([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
  return lanewise([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
#endif
}
inline Vec max(Vec a, Vec b) {
  return lanewise([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline float reduce_max(Vec a) {
  float m = a.v[0];
  for (int i = 1; i < Vec::kLanes; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
inline float reduce_add(Vec a) {
  for (int width = Vec::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  }
  return a.v[0];
}
inline bool all_finite(Vec a) {
  float sum = 0;
  for (int i = 0; i < Vec::kLanes; ++i) sum += a.v[i] * 0.0f;
  return sum == 0.0f;
}
inline Vec round_to_int(Vec a) {
  return lanewise([&](int i) { return __builtin_nearbyintf(a.v[i]); });
}
inline Vec scale_by_power(Vec a, Vec n, Vec x) {
  return lanewise([&](int i) {
    const bool below = x.v[i] < -87.0f;  // false for NaN
    const bool numeric = x.v[i] == x.v[i];
    const int32_t exponent = numeric && !below ? static_cast<int32_t>(n.v[i]) : 0;
    int32_t bits = __builtin_bit_cast(int32_t, a.v[i]);
    bits += exponent * (1 << 23);
    float scaled = __builtin_bit_cast(float, bits);
    return below ? 0.0f : scaled;
  });
}
// As for AVX2.
struct Exponent {
  Vec integral, power;
};
inline constexpr float kLeastExponent = -127.0f;
inline Exponent split_exponent(Vec x) {
  constexpr float kMagic = 12582912.0f + 127.0f;
  const Vec shifted = x + broadcast(kMagic);
  return {shifted - broadcast(kMagic), lanewise([&](int i) {
            return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted.v[i]) << 23);
          })};
}
inline Vec scale_by_exponent(Vec a, Exponent n) { return a * n.power; }

#endif

// e^x for x <= 88; relative error below 2 ulp (tests/test_tree_attention.py), e^0 = 1 and
// e^-inf = 0 exactly, NaN stays NaN. x = n ln 2 + f; e^f by a minimax polynomial of degree 6.
inline Vec exp(Vec x) {
  x = max(broadcast(-105.0f), x);  // rounds to 0; max returns its second argument for NaN
  const Vec n = round_to_int(x * broadcast(1.44269504f));
  const Vec f = fma(n, broadcast(-1.42860677e-06f), fma(n, broadcast(-0.693145752f), x));
  Vec e = fma(f, broadcast(1.381459847e-03f), broadcast(8.368716887e-03f));
  e = fma(f, e, broadcast(4.166838805e-02f));
  e = fma(f, e, broadcast(1.666652063e-01f));
  e = fma(f, e, broadcast(4.999999345e-01f));
  e = fma(f, e, broadcast(1.0f));
  e = fma(f, e, broadcast(1.0f));
  return scale_by_power(e, n, x);
}

// Each x becomes 2^x, for x < 127; several vectors in step, so that none waits for its own
// latencies. Relative error below 1.7e-7 (tests/test_tree_attention.py), 2^0 = 1 exactly, 2^-inf =
// 0, NaN stays NaN. x = n + f; 2^f by a minimax polynomial of degree 5 with p(0) = 1.
template <int kCount>
inline void exp2_each(Vec (&x)[kCount]) {
  constexpr float kCoefficients[] = {1.326472731e-03f, 9.671512991e-03f, 5.550733581e-02f,
                                     2.402224243e-01f, 6.931470037e-01f, 1.0f};
  Exponent n[kCount];
  Vec f[kCount], e[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    x[i] = max(broadcast(kLeastExponent), x[i]);  // max keeps a NaN in its second argument
    n[i] = split_exponent(x[i]);
    f[i] = x[i] - n[i].integral;
    e[i] = broadcast(kCoefficients[0]);
  }
#pragma GCC unroll 8
  for (int k = 1; k < 6; ++k) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) e[i] = fma(f[i], e[i], broadcast(kCoefficients[k]));
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) x[i] = scale_by_exponent(e[i], n[i]);
}

inline Vec exp2(Vec x) {
  Vec one[] = {x};
  exp2_each(one);
  return one[0];
}

}  // namespace treeattn::cpu::TREEATTN_ISA
