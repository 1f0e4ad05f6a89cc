// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <limits>

#include "cpu/row_scan.h"
#include "cpu/scratch.h"

namespace treeattn::cpu {

inline constexpr int kPiece = 512;  // logits per call of a scan: small enough for the first cache

// Logits without NaN or +inf, in any dtype of logits.
struct RowView {
  const void* x;
  DType dtype;
  int count;
  const float* piece_max;  // of each kPiece logits, or nullptr

  const void* at(int begin) const {
    return static_cast<const char*>(x) + int64_t{begin} * element_size(dtype);
  }
};

// A row by rank (larger logit first, then lower id), cut off: what stays is every x > value and the
// first `num_ties` of x == value.
struct Cut {
  static constexpr int kAllTies = INT_MAX;

  float value = -std::numeric_limits<float>::infinity();
  int num_ties = kAllTies;

  // The shorter of two such prefixes.
  static Cut shorter(Cut a, Cut b) {
    if (a.value != b.value) return a.value > b.value ? a : b;
    return a.num_ties < b.num_ties ? a : b;
  }
};

// Finds cuts without sorting: splits the row at guesses from a sample, then bisects what is left.
class CutSearch {
 public:
  explicit CutSearch(const RowScan& scan) : scan_(scan) {}

  // The shortest prefix of at least k entries. `max` is the row's.
  Cut by_count(const RowView& row, int k, float max);

  // The shortest prefix of at least `target` weight, `total` being the weight of the row and w =
  // exp((x - max) / temperature) its weights. The caller knows that no x < low is in it.
  Cut by_weight(const RowView& row, const float* w, double total, double target, float low,
                float max, float temperature);

 private:
  struct Search {  // the cut's value lies in [low, high); `above`: the weight ranked before the
                   // view
    RowView view;
    const float* w;  // of the view; nullptr when entries are counted
    double total;    // of the view
    double above, target;
    float low, high;
    float max, temperature;
  };
  struct Part {  // of a view: the entries within some bounds
    const float* x;
    const float* w;
    double above, weight;  // of the entries above the bounds, and within
    int count;
  };

  Cut run(Search s);
  bool narrow(Search& s);
  bool leaves_little(const Search& s) const;
  void adopt(Search& s, const Part& part);
  Part part(const Search& s, float low, float high);
  void guess(const Search& s, float& low, float& high) const;
  double mass(const Search& s, float low) const;
  Cut finish(const Search& s, float value) const;

  RowScan scan_;
  Scratch lists_[2], weights_[2];  // of two views: the present one and the next
  int turn_ = 0;
};

}  // namespace treeattn::cpu
