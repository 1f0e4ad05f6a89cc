// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "check.h"
#include "simt/convert.h"
#include "simt/machine.h"

namespace checks {
namespace {

constexpr int kSize = 16;  // of the square matrices below

// Each lane's registers, from a 16 x 16 matrix of 16-bit numbers in rows of `stride` bytes.
__global__ void ldmatrix_kernel(uint32_t* out, int stride, bool transposed) {
  char* shared = shared_memory();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < kSize * kSize; i += 32) {
    const auto element = static_cast<uint16_t>(i);
    std::memcpy(shared + i / kSize * stride + i % kSize * 2, &element, 2);
  }
  __syncthreads();
  // Matrices 0, 1: rows 0..7 and 8..15 of the left half; 2, 3: of the right half.
  const char* row = shared + lane % 16 * stride + lane / 16 * 16;
  uint32_t r[4];
  if (transposed) {
    ldmatrix_x4_trans(r, row);
  } else {
    ldmatrix_x4(r, row);
  }
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}

void ldmatrix() {
  for (const bool transposed : {false, true}) {
    std::vector<uint32_t> out(32 * 4);
    launch(ldmatrix_kernel, 1, 32, 16 * 32, nullptr, out.data(), 32, transposed);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        for (int half = 0; half < 2; ++half) {
          int row = lane / 4, column = lane % 4 * 2 + half;
          if (transposed) std::swap(row, column);
          const int element = (row + i % 2 * 8) * kSize + column + i / 2 * 8;
          expect_equal(out[lane * 4 + i] >> half * 16 & 0xffff, static_cast<uint32_t>(element),
                       "lane " + std::to_string(lane) + " register " + std::to_string(i));
        }
      }
    }
  }
}

void ldmatrix_conflicts() {
  std::vector<uint32_t> out(32 * 4);
  const auto conflicts = [&](int stride) {
    treeattn::simt::counters = {};
    launch(ldmatrix_kernel, 1, 32, static_cast<size_t>(16 * stride), nullptr, out.data(), stride,
           false);
    expect_equal(treeattn::simt::counters.ldmatrix, 1, "ldmatrix count");
    return treeattn::simt::counters.ldmatrix_conflicts;
  };
  expect_equal(conflicts(16 * 9), 0, "conflicts of rows a bank group apart");
  expect_equal(conflicts(128), 4 * 7, "conflicts of rows in one bank group");
  expect_equal(conflicts(32), 4 * 1, "conflicts of rows two bank groups apart");
}

__global__ void bad_row_kernel(int offset) {
  uint32_t r[4];
  ldmatrix_x4(r, shared_memory() + offset);
}

void ldmatrix_rows_are_checked() {
  expect_fault([] { launch(bad_row_kernel, 1, 32, 64, nullptr, 8); },
               {"ldmatrix_x4: must be aligned to 16 bytes, is 8 past", "bad_row_kernel"});
  expect_fault([] { launch(bad_row_kernel, 1, 32, 56, nullptr, 48); },
               {"ldmatrix_x4: row not in shared memory"});
}

struct Product {
  uint16_t a[kSize][kSize];  // row-major, as K of the scores lies
  uint16_t b[kSize][kSize];  // [k][n], as V lies
  float d[kSize][kSize];
};

// d += a b with both matrices brought by ldmatrix, the way attention does.
template <class T>
__global__ void product_kernel(Product* p) {
  char* shared = shared_memory();
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) {
    std::memcpy(shared, p->a, sizeof(p->a));
    std::memcpy(shared + sizeof(p->a), p->b, sizeof(p->b));
  }
  __syncwarp();
  const int offset = lane % 16 * 32 + lane / 16 * 16;
  uint32_t a[4], b[4];
  ldmatrix_x4(a, shared + offset);
  ldmatrix_x4_trans(b, shared + sizeof(p->a) + offset);
  const int g = lane / 4, t = lane % 4 * 2;
  for (int half = 0; half < 2; ++half) {  // columns 8 half .. 8 half + 7
    const uint32_t column[2] = {b[half * 2], b[half * 2 + 1]};
    float d[4];
    for (int i = 0; i < 4; ++i) d[i] = p->d[g + i / 2 * 8][half * 8 + t + i % 2];
    mma_m16n8k16<T>(d, a, column);
    for (int i = 0; i < 4; ++i) p->d[g + i / 2 * 8][half * 8 + t + i % 2] = d[i];
  }
}

template <class T>
void check_product() {
  Product p;
  double wanted[kSize][kSize];
  // Small whole numbers and quarters: every sum is exact in fp32.
  const auto a = [](int m, int k) { return static_cast<float>((m * 7 + k * 3) % 19 - 9); };
  const auto b = [](int k, int n) { return static_cast<float>((k * 5 + n * 11) % 23 - 11) / 4; };
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) {
      p.a[i][j] = from_float<T>(a(i, j)).bits;
      p.b[i][j] = from_float<T>(b(i, j)).bits;
      p.d[i][j] = static_cast<float>(i * 100 + j);
      wanted[i][j] = i * 100 + j;
      for (int k = 0; k < kSize; ++k) wanted[i][j] += a(i, k) * b(k, j);
    }
  }
  launch(product_kernel<T>, 1, 32, sizeof(p.a) + sizeof(p.b), nullptr, &p);
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) {
      expect_equal(p.d[i][j], wanted[i][j],
                   "d[" + std::to_string(i) + "][" + std::to_string(j) + "]");
    }
  }
}

void product_bf16() { check_product<BFloat16>(); }
void product_half() { check_product<Half>(); }

__global__ void lost_lane_kernel() {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  if (threadIdx.x != 9) mma_m16n8k16<Half>(d, a, b);
}

void product_needs_the_whole_warp() {
  expect_fault([] { launch(lost_lane_kernel, 1, 32, 0, nullptr); },
               {"31 threads", "wait in mma_m16n8k16", "lost_lane_kernel", "have ended"});
}

bool same_number(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || bits_of(a) == bits_of(b);
}

double e4m3_value(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

void conversions() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto wanted = static_cast<float>(__builtin_bit_cast(_Float16, half));
    expect(same_number(to_float(Half{half}), wanted), "half " + std::to_string(bits));
  }
  // Around every half: its value, the middle to the next, and one step of fp32 to either side.
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float value = to_float(Half{static_cast<uint16_t>(bits)});
    const float next = bits == 0x7bff ? 65536.0f : to_float(Half{static_cast<uint16_t>(bits + 1)});
    const float middle = value + (next - value) / 2;
    for (const float f :
         {value, std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e9f)}) {
      const auto wanted = __builtin_bit_cast(uint16_t, static_cast<_Float16>(f));
      expect_equal(from_float<Half>(f).bits, wanted, "half of " + std::to_string(f));
      expect_equal(from_float<Half>(-f).bits, wanted | 0x8000, "half of -" + std::to_string(f));
    }
  }
  for (int bits = 0; bits < 256; ++bits) {
    const Float8E4M3 e4m3{static_cast<uint8_t>(bits)};
    const bool is_nan = (bits & 0x7f) == 0x7f;
    expect(is_nan ? std::isnan(to_float(e4m3)) : to_float(e4m3) == e4m3_value(bits),
           "e4m3 " + std::to_string(bits));
    if (!is_nan)
      expect_equal(+from_float<Float8E4M3>(to_float(e4m3)).bits, bits, "e4m3 there and back");
  }
  for (int bits = 0; bits < 0x7e; ++bits) {  // ties go to the even one
    const auto middle = static_cast<float>((e4m3_value(bits) + e4m3_value(bits + 1)) / 2);
    expect_equal(+from_float<Float8E4M3>(middle).bits, bits + bits % 2, "tie of e4m3");
    expect_equal(+from_float<Float8E4M3>(std::nextafter(middle, 0.0f)).bits, bits, "below a tie");
    expect_equal(+from_float<Float8E4M3>(std::nextafter(middle, 1e9f)).bits, bits + 1,
                 "above a tie");
  }
  expect_equal(+from_float<Float8E4M3>(-1e30f).bits, 0xfe, "e4m3 of -1e30");
  expect_equal(+from_float<Float8E4M3>(INFINITY).bits, 0x7e, "e4m3 of infinity");
  expect_equal(+from_float<Float8E4M3>(NAN).bits & 0x7f, 0x7f, "e4m3 of NaN");
  expect_equal(e4m3x2_to_half2(0xb838), 0xbc003c00u, "two e4m3 as halves");
  expect_equal(pack_bf16x2(1.0f, -2.0f), 0xc0003f80u, "two bf16");
  expect_equal(pack_half2(1.0f, -2.0f), 0xc0003c00u, "two halves");
  expect_equal(from_float<BFloat16>(1.00390625f).bits, 0x3f80, "tie of bf16, down to even");
  expect_equal(from_float<BFloat16>(1.01171875f).bits, 0x3f82, "tie of bf16, up to even");
  expect(std::isnan(to_float(from_float<BFloat16>(NAN))), "bf16 of NaN");
}

}  // namespace

const std::vector<Check> kMatrices = {
    {"ldmatrix", ldmatrix},
    {"ldmatrix_conflicts", ldmatrix_conflicts},
    {"ldmatrix_rows_are_checked", ldmatrix_rows_are_checked},
    {"product_bf16", product_bf16},
    {"product_half", product_half},
    {"product_needs_the_whole_warp", product_needs_the_whole_warp},
    {"conversions", conversions},
};

}  // namespace checks
