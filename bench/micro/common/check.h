// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

namespace treeattn::micro {

// Compares kernel results with those of an oracle and remembers the element that is furthest off.
class Check {
 public:
  explicit Check(std::string oracle = "the scalar loop") : oracle_(std::move(oracle)) {}

  // `where` names the element; it is called only for a new worst one.
  template <class Where>
  void compare(double actual, double expected, double tolerance, Where&& where) {
    const double error = actual == expected ? 0 : std::abs(actual - expected) / tolerance;
    // A NaN compares false with everything, and nothing is worse.
    note(std::isnan(error) ? kWrong : error, actual, expected, where);
  }

  // Whole numbers, and values that are only moved: equal or wrong.
  template <class T, class Where>
  void equal(T actual, T expected, Where&& where) {
    note(actual == expected ? 0 : kWrong, actual, expected, where);
  }

  void end_case() { ++num_cases_; }

  bool report() const {
    if (worst_ > 1) {
      std::fprintf(stderr, "self-check failed, worst element: %s\n", worst_text_.c_str());
      return false;
    }
    std::printf("self-check: %lld elements in %d cases agree with %s",
                static_cast<long long>(num_elements_), num_cases_, oracle_.c_str());
    std::printf(", the worst at %.2g of its tolerance\n\n", worst_);
    return true;
  }

 private:
  static constexpr double kWrong = std::numeric_limits<double>::infinity();

  template <class T, class Where>
  void note(double ratio, T actual, T expected, Where&& where) {
    ++num_elements_;
    if (ratio <= worst_) return;
    worst_ = ratio;
    std::ostringstream text;
    text.precision(9);
    text << where() << ": got " << actual << ", " << oracle_ << " says " << expected;
    worst_text_ = text.str();
  }

  std::string oracle_;
  int64_t num_elements_ = 0;
  int num_cases_ = 0;
  double worst_ = 0;
  std::string worst_text_;
};

}  // namespace treeattn::micro
