// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/row_choice.h"
#include "cpu/row_scan.h"
#include "treeattn/accept_path.h"
#include "treeattn/residual.h"

namespace treeattn::cpu {

// The weights of a target's law, a piece of kPiece ids or one id at a time.
class TargetPieces {
 public:
  explicit TargetPieces(const RowScan& scan) : scan_(scan) {}

  // Valid until the next call; 0 at ids that are not in the law.
  const float* weights(const LogitsRow& row, const TargetLaw& law, int piece);
  float weight(const LogitsRow& row, const TargetLaw& law, int id) const;

  double exp_minus_entropy(const LogitsRow& row, const TargetLaw& law);

 private:
  RowScan scan_;
  float x_[kPiece], weighed_[kPiece], kept_[kPiece];
};

// Likewise of the laws that were drafted from; ids beyond the columns weigh 0.
class DraftPieces {
 public:
  DraftPieces(const RowScan& scan, const DraftLaws& laws, int vocab_size)
      : scan_(scan), laws_(laws), vocab_size_(vocab_size) {}

  // Reads the whole row: kOk, or kNonFinite where it holds NaN or +inf, and `law` is left alone.
  Status read(int row, DraftLaw& law);

  // As above.
  const float* weights(int row, const DraftLaw& law, int piece);
  float weight(int row, const DraftLaw& law, int id) const;

 private:
  const void* at(int row, int column) const;
  void gather(int row, int begin, int count);

  RowScan scan_;
  const DraftLaws& laws_;
  int vocab_size_;
  float q_[kPiece];
};

}  // namespace treeattn::cpu
