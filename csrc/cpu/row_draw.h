// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/row_cut.h"

namespace treeattn::cpu {

inline int num_pieces(int vocab_size) { return (vocab_size + kPiece - 1) / kPiece; }

inline int piece_size(int vocab_size, int piece) {
  return std::min(kPiece, vocab_size - piece * kPiece);
}

// The smallest id whose cumulative weight exceeds uniform * total. weights(piece) gives kPiece
// weights or fewer, piece_sum their sums. The sums are rounded, so a piece that should hold the id
// may end just short of it: then the next weight is drawn, or the last one of the row.
template <class F>
int draw_from_pieces(const std::vector<double>& piece_sum, int vocab_size, double uniform,
                     F&& weights) {
  double total = 0;
  for (double sum : piece_sum) total += sum;
  const double target = uniform * total;
  double before = 0;
  int last_piece = 0;
  for (int piece = 0; piece < static_cast<int>(piece_sum.size()); ++piece) {
    if (!(piece_sum[piece] > 0)) continue;
    last_piece = piece;
    if (before + piece_sum[piece] > target) {
      const auto* const w = weights(piece);
      double cumulative = before;
      for (int i = 0; i < piece_size(vocab_size, piece); ++i) {
        cumulative += w[i];
        if (w[i] > 0 && cumulative > target) return piece * kPiece + i;
      }
    }
    before += piece_sum[piece];
  }
  const auto* const w = weights(last_piece);
  int i = piece_size(vocab_size, last_piece) - 1;
  while (i > 0 && w[i] == 0) --i;
  return last_piece * kPiece + i;
}

}  // namespace treeattn::cpu
