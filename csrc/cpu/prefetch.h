// SPDX-License-Identifier: Apache-2.0
// Fetching the next tile's K and V rows while the current tile is multiplied. Included by
// VECTOR_SOURCES only.
#pragma once

#include <cstdint>

namespace treeattn::cpu::TREEATTN_ISA {

// Spreads the cache lines of some rows over `num_calls` calls of advance(): asked for all at once
// they would fill the load queue and hold up the products they should hide behind.
class Prefetch {
 public:
  Prefetch() = default;
  // rows: pointers to `num_rows` rows of `row_bytes`, kept by the caller until all are fetched.
  Prefetch(const char* const* rows, int num_rows, int row_bytes, int num_calls)
      : rows_(rows),
        num_rows_(num_rows),
        row_bytes_(row_bytes),
        lines_per_call_((num_rows * ((row_bytes + kLine - 1) / kLine) + num_calls - 1) /
                        num_calls) {}

  void advance() {
    for (int i = 0; i < lines_per_call_ && row_ < num_rows_; ++i) {
      __builtin_prefetch(rows_[row_] + offset_, 0, 2);
      offset_ += kLine;
      if (offset_ >= row_bytes_) {
        offset_ = 0;
        ++row_;
      }
    }
  }

 private:
  static constexpr int kLine = 64;
  const char* const* rows_ = nullptr;
  int num_rows_ = 0, row_bytes_ = 0, lines_per_call_ = 0;
  int row_ = 0, offset_ = 0;
};

}  // namespace treeattn::cpu::TREEATTN_ISA
