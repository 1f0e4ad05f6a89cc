// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace treeattn {

// What a random number decides. Part of the key, so no number serves two purposes.
enum class RandomPurpose : uint32_t {
  kDraw = 0,      // inverse CDF of the target at a node; also the next token of rule `target`
  kResidual = 1,  // inverse CDF of a residual
  kBonus = 2,     // inverse CDF after the last accepted node
  kCoin = 3,      // accept or reject one trial
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), first word.
// key = (low, high) word of the seed, counter = (position, ordinal, purpose, 0).
constexpr uint32_t philox(uint64_t seed, uint32_t position, uint32_t ordinal,
                          RandomPurpose purpose) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t counter[4] = {position, ordinal, static_cast<uint32_t>(purpose), 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0];
    counter[1] = static_cast<uint32_t>(b);
    counter[2] = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1];
    counter[3] = static_cast<uint32_t>(a);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter[0];
}

// In [0, 1), a multiple of 2^-32: exact in double, so every device gets the same number.
constexpr double philox_uniform(uint64_t seed, uint32_t position, uint32_t ordinal,
                                RandomPurpose purpose) {
  return philox(seed, position, ordinal, purpose) * 0x1p-32;
}

// The draw made at a node, which lies at `position`.
constexpr double draw_uniform(uint64_t seed, uint32_t position, RandomPurpose purpose) {
  return philox_uniform(seed, position, 0, purpose);
}

// The coin of the step's `ordinal`-th trial. Positions of nodes would not do: siblings share
// theirs.
constexpr double coin_uniform(uint64_t seed, uint32_t root_position, uint32_t ordinal) {
  return philox_uniform(seed, root_position, ordinal, RandomPurpose::kCoin);
}

}  // namespace treeattn
