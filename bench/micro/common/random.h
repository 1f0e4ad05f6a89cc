// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace treeattn::micro {

// Splitmix64: the same numbers on every machine and with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }

  // In [0, count).
  int below(int count) { return static_cast<int>((bits() >> 32) * count >> 32); }

  // In (0, 1).
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }

  // Mean 0, variance 1, within +-3.5: the sum of four uniforms, cheap enough for whole pools.
  float normal() {
    const uint64_t b = bits();
    const int sum =
        static_cast<int>((b & 65535) + (b >> 16 & 65535) + (b >> 32 & 65535) + (b >> 48));
    return static_cast<float>(sum - 2 * 65535) * (1.7320508f / 65536.0f);
  }

 private:
  uint64_t state_;
};

}  // namespace treeattn::micro
