// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/row_cut.h"
#include "cpu/row_scan.h"
#include "cpu/scratch.h"
#include "treeattn/plan_tree.h"
#include "treeattn/residual.h"

namespace treeattn::cpu {

// One row of logits; `allowed` may be nullptr.
struct LogitsRow {
  const void* logits;
  const uint32_t* allowed;
  DType dtype;
  int vocab_size;
};

// Applied in this order.
struct Sampling {
  float temperature;  // > 0
  int top_k;          // 0: off
  float top_p;        // >= 1: off
  float min_p;        // <= 0: off

  bool cuts_top_k(int vocab_size) const { return top_k > 0 && top_k < vocab_size; }
  bool cuts_top_p() const { return top_p < 1.0f; }
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

  // The law that the filters make of the row; left alone unless the row has one.
  Status find_law(const LogitsRow& row, const Sampling& sampling, TargetLaw& law);

  // From the law that was found last, before anything else was asked about a row: inverse CDF in
  // ascending id, the smallest id whose cumulative probability exceeds `uniform`.
  int draw_found(double uniform);

  float logit(const LogitsRow& row, int id) const;

  // Raw log-softmax of a token: neither temperature nor `allowed` applies.
  float log_prob(const LogitsRow& row, int token);

 private:
  Choice greedy_allowed(const LogitsRow& row);
  Status look(const LogitsRow& row);
  float weigh_piece(int piece);
  Cut find_cut(const Sampling& sampling);
  double sum_all();
  double sum_kept();
  int end_of_ties();
  double kept_sum(int piece, const Cut& cut, int num_ties, float min_weight);
  double keep_piece(int piece, const Cut& cut, int num_ties, float min_weight);

  RowScan scan_;
  CutSearch cuts_;
  RowView view_{};  // the allowed logits of the row
  float max_ = 0, temperature_ = 1;
  bool filters_ = false;
  Cut cut_;
  float min_weight_ = 0;
  Scratch x_, w_;
  std::vector<float> piece_max_;
  std::vector<double> piece_sum_;
  std::vector<int> piece_ties_;  // ties that are still to be kept when the piece begins
  float piece_[kPiece];          // what a scan wrote last
  int num_ties_ = 0;             // ... and the ties it found
};

}  // namespace treeattn::cpu
