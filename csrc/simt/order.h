// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace treeattn::simt {

// Who runs next. In order (the default), each warp goes as far as it can before the next one
// starts; reversed, from the last lane of the last warp; at random, with a seed.
class Order {
 public:
  // Reads TREEATTN_SIMT_ORDER: forward, reverse or random:SEED. A launch repeats for equal seeds.
  void start();

  bool is_random() const { return kind_ == Kind::kRandom; }

  // The numbers 0 .. count - 1 as CTAs shall run.
  void shuffle(int64_t count, std::vector<int64_t>& ctas);

  // The number of a set bit of `ready`, which is not 0: of a warp among warps, a lane among lanes.
  int pick(uint32_t ready);

 private:
  enum class Kind { kForward, kReverse, kRandom };
  uint32_t random();

  Kind kind_ = Kind::kForward;
  uint64_t state_ = 0;
};

}  // namespace treeattn::simt
