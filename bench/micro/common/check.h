// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>

namespace treeattn::micro {

// Compares kernel results with a scalar loop's and remembers the element that is furthest off.
class Check {
 public:
  // `where` names the element; it is called only for a new worst one.
  template <class Where>
  void compare(double actual, double expected, double tolerance, Where&& where) {
    ++num_elements_;
    const double error = actual == expected ? 0 : std::abs(actual - expected) / tolerance;
    // A NaN compares false with everything, and nothing is worse.
    const double ratio = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    if (ratio <= worst_) return;
    worst_ = ratio;
    std::ostringstream text;
    text.precision(9);
    text << where() << ": got " << actual << ", the scalar loop says " << expected;
    worst_text_ = text.str();
  }

  // Whole numbers and bytes: equal or wrong.
  template <class Where>
  void equal(int64_t actual, int64_t expected, Where&& where) {
    compare(static_cast<double>(actual), static_cast<double>(expected), 1e-9, where);
  }

  void end_case() { ++num_cases_; }

  bool report() const {
    if (worst_ > 1) {
      std::fprintf(stderr, "self-check failed, worst element: %s\n", worst_text_.c_str());
      return false;
    }
    std::printf("self-check: %lld elements in %d cases agree with the scalar loop",
                static_cast<long long>(num_elements_), num_cases_);
    std::printf(", the worst at %.2g of its tolerance\n\n", worst_);
    return true;
  }

 private:
  int64_t num_elements_ = 0;
  int num_cases_ = 0;
  double worst_ = 0;
  std::string worst_text_;
};

}  // namespace treeattn::micro
