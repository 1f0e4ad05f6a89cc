// SPDX-License-Identifier: Apache-2.0
// Fetching K and V rows while others are packed and multiplied. Included by
// VECTOR_SOURCES only.
#pragma once

#include <cstdint>

namespace treeattn::cpu::TREEATTN_ISA {

// Lines that may be asked for at once, after a block: some more, and a core that can wait for 24
// (Zen 4) loses up to a fifth of the products' time where a block has few rows and cold keys.
inline constexpr int kFewLines = 8;

inline constexpr int kPiecesPerBlock = 4;

// Spreads the cache lines of some K and V rows over the `num_blocks` blocks of a product, and over
// pieces of packing, kPiecesPerBlock of which take about as long as a block: asked for all at once
// they would hold up the work they should hide behind.
class Prefetch {
 public:
  Prefetch() = default;
  // The row pointers, of V optional, are kept by the caller until all rows are fetched.
  // level: of the cache that the lines go to, 1 or 2.
  Prefetch(const char* const* k_rows, const char* const* v_rows, int num_rows, int row_bytes,
           int num_blocks, int level = 1)
      : level_(level),
        rows_(k_rows),
        v_rows_(v_rows),
        num_rows_(num_rows),
        row_bytes_(row_bytes),
        lines_per_block_(
            ((v_rows == nullptr ? 1 : 2) * num_rows * ((row_bytes + kLine - 1) / kLine) +
             num_blocks - 1) /
            num_blocks) {}

  // 0 once all are fetched.
  int lines_per_block() const { return rows_ == nullptr ? 0 : lines_per_block_; }

  void advance_by_piece() { advance((lines_per_block() + kPiecesPerBlock - 1) / kPiecesPerBlock); }

  void advance(int num_lines) {
    for (int i = 0; i < num_lines && rows_ != nullptr; ++i) {
      if (level_ == 1) {
        __builtin_prefetch(rows_[row_] + offset_, 0, 3);
      } else {
        __builtin_prefetch(rows_[row_] + offset_, 0, 2);
      }
      offset_ += kLine;
      if (offset_ < row_bytes_) continue;
      offset_ = 0;
      if (++row_ < num_rows_) continue;
      row_ = 0;
      rows_ = rows_ == v_rows_ ? nullptr : v_rows_;
    }
  }

 private:
  static constexpr int kLine = 64;
  int level_ = 1;
  const char* const* rows_ = nullptr;  // of K, then of V, then none
  const char* const* v_rows_ = nullptr;
  int num_rows_ = 0, row_bytes_ = 0, lines_per_block_ = 0;
  int row_ = 0, offset_ = 0;
};

}  // namespace treeattn::cpu::TREEATTN_ISA
