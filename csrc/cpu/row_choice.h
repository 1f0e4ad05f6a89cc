// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/row_scan.h"
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

// Scratch of one thread: a row of floats and what is known of its pieces.
class RowChooser {
 public:
  explicit RowChooser(const RowScan& scan) : scan_(scan) {}

  // The lowest id with the largest allowed logit.
  Choice greedy(const LogitsRow& row);

  // Inverse CDF in ascending id: the smallest id whose cumulative probability exceeds `uniform`.
  Choice draw(const LogitsRow& row, const Sampling& sampling, double uniform);

  // Raw log-softmax of a token: neither temperature nor `allowed` applies.
  float log_prob(const LogitsRow& row, int token);

 private:
  static constexpr int kPiece = 512;  // logits per pass, small enough for the first-level cache

  Status load(const LogitsRow& row);
  double weigh(float temperature);
  int draw_from_all(double target) const;
  int draw_from_kept(double uniform) const;
  void keep_top_k(int k);
  void keep_at_least(float weight);
  void keep_top_p(double mass);
  bool ranks_before(int a, int b) const;

  RowScan scan_;
  float max_ = 0;
  std::vector<float> x_, w_;
  std::vector<float> piece_max_;
  std::vector<double> piece_sum_;
  std::vector<int> kept_;  // ascending ids
  std::vector<float> buffer_;
};

}  // namespace treeattn::cpu
