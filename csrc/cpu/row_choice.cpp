// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_choice.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace treeattn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int num_pieces(int vocab_size) { return (vocab_size + kPiece - 1) / kPiece; }

int piece_size(int vocab_size, int piece) { return std::min(kPiece, vocab_size - piece * kPiece); }

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
      const float* const w = weights(piece);
      double cumulative = before;
      for (int i = 0; i < piece_size(vocab_size, piece); ++i) {
        cumulative += w[i];
        if (w[i] > 0.0f && cumulative > target) return piece * kPiece + i;
      }
    }
    before += piece_sum[piece];
  }
  const float* const w = weights(last_piece);
  int i = piece_size(vocab_size, last_piece) - 1;
  while (i > 0 && w[i] == 0.0f) --i;
  return last_piece * kPiece + i;
}

}  // namespace

Choice RowChooser::greedy(const LogitsRow& row) {
  if (row.allowed != nullptr) return greedy_allowed(row);
  const RowTop top = scan_.top(row.logits, row.dtype, row.vocab_size);
  if (!top.finite) return {.token = -1, .status = kNonFinite};
  return {.token = top.index, .status = top.index < 0 ? kNoTokenLeft : kOk};
}

Choice RowChooser::greedy_allowed(const LogitsRow& row) {
  float best = -kInfinity;
  int best_piece = -1;
  const auto load_piece = [&](int piece) {
    const int count = piece_size(row.vocab_size, piece);
    scan_.load(piece_, row.logits, row.dtype, row.allowed, piece * kPiece, count);
    return count;
  };
  for (int piece = 0; piece < num_pieces(row.vocab_size); ++piece) {
    const RowPeak peak = scan_.peak(piece_, DType::kFloat32, load_piece(piece));
    if (!peak.finite) return {.token = -1, .status = kNonFinite};
    if (peak.max <= best) continue;
    best = peak.max;
    best_piece = piece;
  }
  if (best_piece < 0) return {.token = -1, .status = kNoTokenLeft};
  const RowTop top = scan_.top(piece_, DType::kFloat32, load_piece(best_piece));
  return {.token = best_piece * kPiece + top.index, .status = kOk};
}

Choice RowChooser::draw(const LogitsRow& row, const Sampling& sampling, double uniform) {
  const Status status = look(row);
  if (status != kOk) return {.token = -1, .status = status};
  // The clamp keeps -inf / temperature and 0 / temperature defined.
  const float temperature = std::clamp(sampling.temperature, FLT_MIN, FLT_MAX);
  const bool top_k = sampling.top_k > 0 && sampling.top_k < row.vocab_size;
  const bool top_p = sampling.top_p < 1.0f;
  const bool min_p = sampling.min_p > 0.0f;
  if (!top_k && !top_p && !min_p) {
    return {.token = draw_from_all(uniform, temperature), .status = kOk};
  }
  double total = weigh_all(temperature);
  Cut cut;
  if (top_k) cut = cuts_.by_count(view_, sampling.top_k, max_);
  if (top_p) {
    if (top_k) {
      total = 0;
      int num_ties = cut.num_ties;
      for (int piece = 0; piece < num_pieces(row.vocab_size); ++piece) {
        total += keep_piece(piece, cut, num_ties, 0.0f);
        num_ties -= std::min(num_ties, num_ties_);
      }
    }
    const float* const w = w_.floats(0);
    cut = Cut::shorter(cut, cuts_.by_weight(view_, w, total, sampling.top_p * total, cut.value,
                                            max_, temperature));
  }
  // The likeliest id weighs 1 and is always kept, so w is p / max p.
  return {.token = draw_from_kept(uniform, cut, min_p ? sampling.min_p : 0.0f), .status = kOk};
}

float RowChooser::log_prob(const LogitsRow& row, int token) {
  const LogitsRow raw{
      .logits = row.logits, .allowed = nullptr, .dtype = row.dtype, .vocab_size = row.vocab_size};
  if (look(raw) == kNonFinite) return std::numeric_limits<float>::quiet_NaN();
  double total = 0;
  for (int piece = 0; piece < num_pieces(row.vocab_size); ++piece) {
    total += scan_.weigh(piece_, view_.at(piece * kPiece), view_.dtype,
                         piece_size(row.vocab_size, piece), max_, 1.0f);
  }
  float logit;
  scan_.load(&logit, row.logits, row.dtype, nullptr, token, 1);
  return static_cast<float>(double{logit} - max_ - std::log(total));
}

// Makes view_ the allowed logits, where they are when all are allowed, and finds their maxima.
Status RowChooser::look(const LogitsRow& row) {
  const int count = num_pieces(row.vocab_size);
  piece_max_.resize(count);
  view_ = {
      .x = row.logits, .dtype = row.dtype, .count = row.vocab_size, .piece_max = piece_max_.data()};
  if (row.allowed != nullptr) {
    float* const x = x_.floats(row.vocab_size);
    scan_.load(x, row.logits, row.dtype, row.allowed, 0, row.vocab_size);
    view_.x = x;
    view_.dtype = DType::kFloat32;
  }
  max_ = -kInfinity;
  for (int piece = 0; piece < count; ++piece) {
    const RowPeak peak =
        scan_.peak(view_.at(piece * kPiece), view_.dtype, piece_size(row.vocab_size, piece));
    if (!peak.finite) return kNonFinite;
    piece_max_[piece] = peak.max;
    max_ = std::max(max_, peak.max);
  }
  return max_ == -kInfinity ? kNoTokenLeft : kOk;
}

// Fills w_ and returns its sum.
double RowChooser::weigh_all(float temperature) {
  float* const w = w_.floats(view_.count);
  double total = 0;
  for (int piece = 0; piece < num_pieces(view_.count); ++piece) {
    total += scan_.weigh(w + piece * kPiece, view_.at(piece * kPiece), view_.dtype,
                         piece_size(view_.count, piece), max_, temperature);
  }
  return total;
}

int RowChooser::draw_from_all(double uniform, float temperature) {
  const auto weigh_piece = [&](int piece) {
    return scan_.weigh(piece_, view_.at(piece * kPiece), view_.dtype,
                       piece_size(view_.count, piece), max_, temperature);
  };
  piece_sum_.resize(num_pieces(view_.count));
  for (size_t piece = 0; piece < piece_sum_.size(); ++piece) {
    piece_sum_[piece] = weigh_piece(static_cast<int>(piece));
  }
  return draw_from_pieces(piece_sum_, view_.count, uniform, [&](int piece) {
    weigh_piece(piece);
    return piece_;
  });
}

int RowChooser::draw_from_kept(double uniform, const Cut& cut, float min_weight) {
  piece_sum_.resize(num_pieces(view_.count));
  piece_ties_.resize(piece_sum_.size());
  int num_ties = cut.num_ties;
  for (size_t piece = 0; piece < piece_sum_.size(); ++piece) {
    piece_ties_[piece] = num_ties;
    piece_sum_[piece] = kept_sum(static_cast<int>(piece), cut, num_ties, min_weight);
    if (num_ties != Cut::kAllTies) num_ties -= std::min(num_ties, num_ties_);
  }
  return draw_from_pieces(piece_sum_, view_.count, uniform, [&](int piece) {
    keep_piece(piece, cut, piece_ties_[piece], min_weight);
    return piece_;
  });
}

// As keep_piece, which is not needed for its sum where no tie and no light weight is cut off.
double RowChooser::kept_sum(int piece, const Cut& cut, int num_ties, float min_weight) {
  if (num_ties != Cut::kAllTies || min_weight > 0.0f) {
    return keep_piece(piece, cut, num_ties, min_weight);
  }
  if (piece_max_[piece] < cut.value) return 0;
  const int begin = piece * kPiece;
  return scan_.mass(view_.at(begin), view_.dtype, w_.floats(0) + begin,
                    piece_size(view_.count, piece), cut.value);
}

// piece_ = the weights of a piece that stay, 0 for the others; returns their sum. `num_ties` of the
// ids whose logit is cut.value may stay.
double RowChooser::keep_piece(int piece, const Cut& cut, int num_ties, float min_weight) {
  num_ties_ = 0;
  if (piece_max_[piece] < cut.value) return 0;
  const int begin = piece * kPiece, count = piece_size(view_.count, piece);
  const RowKept kept = scan_.keep(piece_, view_.at(begin), view_.dtype, w_.floats(0) + begin, count,
                                  cut.value, num_ties > 0, min_weight);
  num_ties_ = kept.num_ties;
  if (num_ties == 0 || num_ties >= kept.num_ties) return kept.sum;
  float x[kPiece];
  scan_.load(x, view_.x, view_.dtype, nullptr, begin, count);
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    if (x[i] == cut.value && --num_ties < 0) piece_[i] = 0.0f;
    sum += piece_[i];
  }
  return sum;
}

}  // namespace treeattn::cpu
