// SPDX-License-Identifier: Apache-2.0
#include "simt/order.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "treeattn/check.h"

namespace treeattn::simt {

void Order::start() {
  const char* variable = std::getenv("TREEATTN_SIMT_ORDER");
  const std::string_view text = variable == nullptr ? "forward" : variable;
  constexpr std::string_view kRandom = "random:";
  if (text == "forward") {
    kind_ = Kind::kForward;
  } else if (text == "reverse") {
    kind_ = Kind::kReverse;
  } else {
    kind_ = Kind::kRandom;
    const char* const end = text.data() + text.size();
    const bool named = text.starts_with(kRandom);
    const auto [rest, error] =
        std::from_chars(text.data() + (named ? kRandom.size() : 0), end, state_);
    TREEATTN_CHECK(named && error == std::errc{} && rest == end,
                   "TREEATTN_SIMT_ORDER must be forward, reverse or random:SEED, got ", text);
  }
}

void Order::shuffle(int64_t count, std::vector<int64_t>& ctas) {
  ctas.resize(count);
  std::iota(ctas.begin(), ctas.end(), int64_t{0});
  if (kind_ == Kind::kReverse) std::reverse(ctas.begin(), ctas.end());
  if (kind_ != Kind::kRandom) return;
  for (int64_t i = count - 1; i > 0; --i) std::swap(ctas[i], ctas[random() % (i + 1)]);
}

int Order::pick(uint32_t ready) {
  if (kind_ == Kind::kForward) return std::countr_zero(ready);
  if (kind_ == Kind::kReverse) return 31 - std::countl_zero(ready);
  const int turn = static_cast<int>(random() & 31);
  return (std::countr_zero(std::rotr(ready, turn)) + turn) & 31;
}

// SplitMix64: any seed will do, 0 too.
uint32_t Order::random() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return static_cast<uint32_t>((z ^ z >> 31) >> 32);
}

}  // namespace treeattn::simt
