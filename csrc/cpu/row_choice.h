// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/row_cut.h"
#include "cpu/row_scan.h"
#include "cpu/scratch.h"
#include "treeattn/plan_tree.h"

namespace treeattn::cpu {

// One row of logits; `allowed` may be nullptr.
struct LogitsRow {
  const void* logits;
  const uint32_t* allowed;
  DType dtype;
  int vocab_size;
};

// Applied in this order; a value that switches a filter off has already been replaced.
struct Sampling {
  float temperature;  // > 0
  int top_k;          // 0: off
  float top_p;        // >= 1: off
  float min_p;        // <= 0: off
};

struct Choice {
  int token;
  Status status;  // kOk, kNonFinite or kNoTokenLeft
};

// Chooses from one row after the other, with the scratch of one thread.
class RowChooser {
 public:
  explicit RowChooser(const RowScan& scan) : scan_(scan), cuts_(scan) {}

  // The lowest id with the largest allowed logit.
  Choice greedy(const LogitsRow& row);

  // Inverse CDF in ascending id: the smallest id whose cumulative probability exceeds `uniform`.
  Choice draw(const LogitsRow& row, const Sampling& sampling, double uniform);

  // Raw log-softmax of a token: neither temperature nor `allowed` applies.
  float log_prob(const LogitsRow& row, int token);

 private:
  Choice greedy_allowed(const LogitsRow& row);
  Status look(const LogitsRow& row);
  double weigh_all(float temperature);
  int draw_from_all(double uniform, float temperature);
  int draw_from_kept(double uniform, const Cut& cut, float min_weight);
  double kept_sum(int piece, const Cut& cut, int num_ties, float min_weight);
  double keep_piece(int piece, const Cut& cut, int num_ties, float min_weight);

  RowScan scan_;
  CutSearch cuts_;
  RowView view_{};  // the allowed logits of the row
  float max_ = 0;
  Scratch x_, w_;
  std::vector<float> piece_max_;
  std::vector<double> piece_sum_;
  std::vector<int> piece_ties_;  // ties that are still to be kept when the piece begins
  float piece_[kPiece];          // what a scan wrote last
  int num_ties_ = 0;             // ... and the ties it found
};

}  // namespace treeattn::cpu
