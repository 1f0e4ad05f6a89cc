// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>

#include "treeattn/dtype.h"

namespace treeattn::micro {

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    default:
      throw std::logic_error("the benchmarks use fp32 and bf16 only");
  }
}

// A buffer of fp32 or bf16 elements that starts on a cache line. Conversions are the bench's own.
class Elements {
 public:
  Elements(DType dtype, int64_t size)
      : dtype_(dtype),
        size_(size),
        bytes_(static_cast<char*>(::operator new(size * element_size(dtype), kCacheLine))) {
    std::memset(data(), 0, num_bytes());
  }

  void* data() { return bytes_.get(); }
  const void* data() const { return bytes_.get(); }
  int64_t size() const { return size_; }
  int64_t num_bytes() const { return size_ * element_size(dtype_); }
  DType dtype() const { return dtype_; }

  void set(int64_t i, float value) {
    if (dtype_ == DType::kFloat32) {
      std::memcpy(bytes_.get() + 4 * i, &value, 4);
      return;
    }
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t nearest_even = std::isnan(value) ? bits : bits + 0x7fff + (bits >> 16 & 1);
    const auto half = static_cast<uint16_t>(nearest_even >> 16);
    std::memcpy(bytes_.get() + 2 * i, &half, 2);
  }

  double get(int64_t i) const {
    if (dtype_ == DType::kFloat32) {
      float value;
      std::memcpy(&value, bytes_.get() + 4 * i, 4);
      return value;
    }
    uint16_t half;
    std::memcpy(&half, bytes_.get() + 2 * i, 2);
    return std::bit_cast<float>(uint32_t{half} << 16);
  }

  // What nobody may read: one read of it spoils a result visibly.
  void poison() {
    for (int64_t i = 0; i < size_; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  static constexpr std::align_val_t kCacheLine{64};
  struct Free {
    void operator()(char* p) const { ::operator delete(p, kCacheLine); }
  };

  DType dtype_;
  int64_t size_;
  std::unique_ptr<char, Free> bytes_;
};

}  // namespace treeattn::micro
