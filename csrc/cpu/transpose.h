// SPDX-License-Identifier: Apache-2.0
// In-register transposition of a square of floats. Included by the sources of VECTOR_SOURCES only.
#pragma once

#include "cpu/vec.h"

namespace treeattn::cpu::TREEATTN_ISA {

#if defined(__AVX512F__)

inline void transpose(Vec (&rows)[16]) {
  __m512 pair[16];   // two rows interleaved
  __m512d quad[16];  // quad[4i + j], 128-bit lane k: column 4k + j of rows 4i .. 4i + 3
  for (int i = 0; i < 16; i += 2) {
    pair[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
    pair[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      const __m512d a = _mm512_castps_pd(pair[i + half]);
      const __m512d b = _mm512_castps_pd(pair[i + half + 2]);
      quad[i + 2 * half] = _mm512_unpacklo_pd(a, b);
      quad[i + 2 * half + 1] = _mm512_unpackhi_pd(a, b);
    }
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 r0 = _mm512_castpd_ps(quad[j]), r4 = _mm512_castpd_ps(quad[4 + j]);
    const __m512 r8 = _mm512_castpd_ps(quad[8 + j]), r12 = _mm512_castpd_ps(quad[12 + j]);
    const __m512 even_top = _mm512_shuffle_f32x4(r0, r4, 0x88);
    const __m512 even_bottom = _mm512_shuffle_f32x4(r8, r12, 0x88);
    const __m512 odd_top = _mm512_shuffle_f32x4(r0, r4, 0xdd);
    const __m512 odd_bottom = _mm512_shuffle_f32x4(r8, r12, 0xdd);
    rows[j].v = _mm512_shuffle_f32x4(even_top, even_bottom, 0x88);
    rows[4 + j].v = _mm512_shuffle_f32x4(odd_top, odd_bottom, 0x88);
    rows[8 + j].v = _mm512_shuffle_f32x4(even_top, even_bottom, 0xdd);
    rows[12 + j].v = _mm512_shuffle_f32x4(odd_top, odd_bottom, 0xdd);
  }
}

#elif defined(__AVX2__)

inline void transpose(Vec (&rows)[8]) {
  __m256 pair[8];
  __m256 quad[8];  // quad[4i + j], 128-bit lane k: column 4k + j of rows 4i .. 4i + 3
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
    pair[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int half = 0; half < 2; ++half) {
      quad[i + 2 * half] = _mm256_shuffle_ps(pair[i + half], pair[i + half + 2], 0x44);
      quad[i + 2 * half + 1] = _mm256_shuffle_ps(pair[i + half], pair[i + half + 2], 0xee);
    }
  }
  for (int j = 0; j < 4; ++j) {
    rows[j].v = _mm256_permute2f128_ps(quad[j], quad[4 + j], 0x20);
    rows[4 + j].v = _mm256_permute2f128_ps(quad[j], quad[4 + j], 0x31);
  }
}

#else

inline void transpose(Vec (&rows)[Vec::kLanes]) {
  for (int i = 0; i < Vec::kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float above = rows[j].v[i];
      rows[j].v[i] = rows[i].v[j];
      rows[i].v[j] = above;
    }
  }
}

#endif

}  // namespace treeattn::cpu::TREEATTN_ISA
