// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_choice.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "cpu/row_draw.h"

namespace treeattn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

Status RowChooser::find_law(const LogitsRow& row, const Sampling& sampling, TargetLaw& law) {
  const Status status = look(row);
  if (status != kOk) return status;
  // The clamp keeps -inf / temperature and 0 / temperature defined.
  temperature_ = std::clamp(sampling.temperature, FLT_MIN, FLT_MAX);
  // The likeliest id weighs 1 and is always kept, so a weight is p / max p.
  min_weight_ = std::max(sampling.min_p, 0.0f);
  filters_ = sampling.cuts_top_k(row.vocab_size) || sampling.cuts_top_p() || min_weight_ > 0.0f;
  cut_ = filters_ ? find_cut(sampling) : Cut{};
  const double total = filters_ ? sum_kept() : sum_all();
  law = {.max = max_,
         .temperature = temperature_,
         .cut = cut_.value,
         .tie_end = end_of_ties(),
         .min_weight = min_weight_,
         .total = total};
  return kOk;
}

int RowChooser::draw_found(double uniform) {
  return draw_from_pieces(piece_sum_, view_.count, uniform, [&](int piece) {
    if (filters_) {
      keep_piece(piece, cut_, piece_ties_[piece], min_weight_);
    } else {
      weigh_piece(piece);
    }
    return piece_;
  });
}

// What top-k and top-p leave. Fills w_.
Cut RowChooser::find_cut(const Sampling& sampling) {
  const int vocab_size = view_.count;
  float* const w = w_.floats(vocab_size);
  double total = 0;
  for (int piece = 0; piece < num_pieces(vocab_size); ++piece) {
    total += scan_.weigh(w + piece * kPiece, view_.at(piece * kPiece), view_.dtype,
                         piece_size(vocab_size, piece), max_, temperature_);
  }
  Cut cut;
  const bool top_k = sampling.cuts_top_k(vocab_size);
  if (top_k) cut = cuts_.by_count(view_, sampling.top_k, max_);
  if (!sampling.cuts_top_p()) return cut;
  if (top_k) {
    total = 0;
    int num_ties = cut.num_ties;
    for (int piece = 0; piece < num_pieces(vocab_size); ++piece) {
      total += keep_piece(piece, cut, num_ties, 0.0f);
      num_ties -= std::min(num_ties, num_ties_);
    }
  }
  return Cut::shorter(
      cut, cuts_.by_weight(view_, w, total, sampling.top_p * total, cut.value, max_, temperature_));
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
  return static_cast<float>(double{logit(row, token)} - max_ - std::log(total));
}

float RowChooser::logit(const LogitsRow& row, int id) const {
  float x;
  scan_.load(&x, row.logits, row.dtype, nullptr, id, 1);
  return x;
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

// piece_ = the weights of a piece; returns their sum.
float RowChooser::weigh_piece(int piece) {
  return scan_.weigh(piece_, view_.at(piece * kPiece), view_.dtype, piece_size(view_.count, piece),
                     max_, temperature_);
}

// Fills piece_sum_ and returns the sum of it.
double RowChooser::sum_all() {
  piece_sum_.resize(num_pieces(view_.count));
  double total = 0;
  for (size_t piece = 0; piece < piece_sum_.size(); ++piece) {
    piece_sum_[piece] = weigh_piece(static_cast<int>(piece));
    total += piece_sum_[piece];
  }
  return total;
}

// Fills piece_sum_ and piece_ties_; returns the sum of what stays.
double RowChooser::sum_kept() {
  piece_sum_.resize(num_pieces(view_.count));
  piece_ties_.resize(piece_sum_.size());
  int num_ties = cut_.num_ties;
  double total = 0;
  for (size_t piece = 0; piece < piece_sum_.size(); ++piece) {
    piece_ties_[piece] = num_ties;
    piece_sum_[piece] = kept_sum(static_cast<int>(piece), cut_, num_ties, min_weight_);
    total += piece_sum_[piece];
    if (num_ties != Cut::kAllTies) num_ties -= std::min(num_ties, num_ties_);
  }
  return total;
}

// After sum_kept: the first id from which on ids whose logit equals the cut are out.
int RowChooser::end_of_ties() {
  if (cut_.num_ties == Cut::kAllTies) return INT_MAX;
  // The last piece that still has ties to keep; those behind it have none.
  int piece = static_cast<int>(piece_ties_.size()) - 1;
  while (piece > 0 && piece_ties_[piece] == 0) --piece;
  float x[kPiece];
  const int begin = piece * kPiece, count = piece_size(view_.count, piece);
  scan_.load(x, view_.x, view_.dtype, nullptr, begin, count);
  int left = piece_ties_[piece];
  for (int i = 0; i < count; ++i) {
    if (x[i] == cut_.value && --left < 0) return begin + i;
  }
  return begin + count;
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
