// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_choice.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>

namespace treeattn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class F>
void for_each_piece(int vocab_size, int piece, F&& f) {
  for (int begin = 0; begin < vocab_size; begin += piece) {
    f(begin, std::min(piece, vocab_size - begin));
  }
}

}  // namespace

Choice RowChooser::greedy(const LogitsRow& row) {
  buffer_.resize(kPiece);
  const bool in_place = row.dtype == DType::kFloat32 && row.allowed == nullptr;
  const auto piece_at = [&](int begin, int count) {
    if (in_place) return static_cast<const float*>(row.logits) + begin;
    scan_.load(buffer_.data(), row.logits, row.dtype, row.allowed, begin, count);
    return static_cast<const float*>(buffer_.data());
  };
  float best = -kInfinity;
  int best_begin = -1;
  bool finite = true;
  for_each_piece(row.vocab_size, kPiece, [&](int begin, int count) {
    const RowPeak peak = scan_.peak(piece_at(begin, count), count);
    finite &= peak.finite;
    if (peak.max <= best) return;
    best = peak.max;
    best_begin = begin;
  });
  if (!finite) return {.token = -1, .status = kNonFinite};
  if (best_begin < 0) return {.token = -1, .status = kNoTokenLeft};
  const int count = std::min(kPiece, row.vocab_size - best_begin);
  const float* const x = piece_at(best_begin, count);
  return {.token = best_begin + static_cast<int>(std::find(x, x + count, best) - x), .status = kOk};
}

Choice RowChooser::draw(const LogitsRow& row, const Sampling& sampling, double uniform) {
  const Status status = load(row);
  if (status != kOk) return {.token = -1, .status = status};
  const double total = weigh(sampling.temperature);
  const bool top_k = sampling.top_k > 0 && sampling.top_k < row.vocab_size;
  const bool top_p = sampling.top_p < 1.0f;
  const bool min_p = sampling.min_p > 0.0f;
  if (!top_k && !top_p && !min_p) {
    return {.token = draw_from_all(uniform * total), .status = kOk};
  }
  double kept_total = total;
  if (top_k) {
    keep_top_k(sampling.top_k);
    kept_total = 0;
    for (int id : kept_) kept_total += w_[id];
  } else if (top_p) {
    // Ids this light hold less than (1 - top_p) of the mass together: the prefix ends before them.
    keep_at_least(static_cast<float>(0.999 * (1.0 - sampling.top_p) * total / row.vocab_size));
  } else {
    keep_at_least(sampling.min_p);
  }
  if (top_p) keep_top_p(sampling.top_p * kept_total);
  // The likeliest id weighs 1 and is always kept, so w is p / max p.
  if (min_p) std::erase_if(kept_, [&](int id) { return w_[id] < sampling.min_p; });
  return {.token = draw_from_kept(uniform), .status = kOk};
}

float RowChooser::log_prob(const LogitsRow& row, int token) {
  buffer_.resize(2 * kPiece);
  float* const x = buffer_.data();
  float* const w = x + kPiece;
  const auto load_piece = [&](int begin, int count) {
    scan_.load(x, row.logits, row.dtype, nullptr, begin, count);
  };
  float max = -kInfinity;
  bool finite = true;
  for_each_piece(row.vocab_size, kPiece, [&](int begin, int count) {
    load_piece(begin, count);
    const RowPeak peak = scan_.peak(x, count);
    finite &= peak.finite;
    max = std::max(max, peak.max);
  });
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  double total = 0;
  float logit = 0;
  for_each_piece(row.vocab_size, kPiece, [&](int begin, int count) {
    load_piece(begin, count);
    total += scan_.weigh(w, x, count, max, 1.0f);
    if (token >= begin && token < begin + count) logit = x[token - begin];
  });
  return static_cast<float>(double{logit} - max - std::log(total));
}

// Fills x_ with the allowed logits.
Status RowChooser::load(const LogitsRow& row) {
  x_.resize(row.vocab_size);
  piece_max_.clear();
  max_ = -kInfinity;
  bool finite = true;
  for_each_piece(row.vocab_size, kPiece, [&](int begin, int count) {
    scan_.load(x_.data() + begin, row.logits, row.dtype, row.allowed, begin, count);
    const RowPeak peak = scan_.peak(x_.data() + begin, count);
    finite &= peak.finite;
    max_ = std::max(max_, peak.max);
    piece_max_.push_back(peak.max);
  });
  if (!finite) return kNonFinite;
  return max_ == -kInfinity ? kNoTokenLeft : kOk;
}

// Fills w_ and returns its sum. The clamp keeps -inf / temperature and 0 / temperature defined.
double RowChooser::weigh(float temperature) {
  const float divisor = std::clamp(temperature, FLT_MIN, FLT_MAX);
  w_.resize(x_.size());
  piece_sum_.clear();
  double total = 0;
  for_each_piece(static_cast<int>(x_.size()), kPiece, [&](int begin, int count) {
    piece_sum_.push_back(scan_.weigh(w_.data() + begin, x_.data() + begin, count, max_, divisor));
    total += piece_sum_.back();
  });
  return total;
}

// Rounding may leave the sum just short of `target`: then the last id with any weight is drawn.
int RowChooser::draw_from_all(double target) const {
  int last = -1;
  double before = 0;
  for (size_t piece = 0; piece < piece_sum_.size(); ++piece) {
    const int begin = static_cast<int>(piece) * kPiece;
    const int end = std::min(begin + kPiece, static_cast<int>(w_.size()));
    const bool is_last = piece + 1 == piece_sum_.size();
    if (before + piece_sum_[piece] > target || is_last) {
      double cumulative = before;
      for (int id = begin; id < end; ++id) {
        cumulative += w_[id];
        if (w_[id] > 0.0f) last = id;
        if (cumulative > target && last == id) return id;
      }
    } else if (piece_sum_[piece] > 0) {
      last = end - 1;
      while (w_[last] == 0.0f) --last;
    }
    before += piece_sum_[piece];
  }
  return last;
}

int RowChooser::draw_from_kept(double uniform) const {
  double total = 0;
  for (int id : kept_) total += w_[id];
  const double target = uniform * total;
  double cumulative = 0;
  int last = -1;
  for (int id : kept_) {
    cumulative += w_[id];
    if (w_[id] > 0.0f) last = id;
    if (cumulative > target && last == id) return id;
  }
  return last;
}

bool RowChooser::ranks_before(int a, int b) const {
  return x_[a] > x_[b] || (x_[a] == x_[b] && a < b);
}

// The k-th largest maximum of a piece is at most the k-th largest logit, so only pieces that reach
// it can hold one of the k.
void RowChooser::keep_top_k(int k) {
  float floor = -kInfinity;
  if (k <= static_cast<int>(piece_max_.size())) {
    buffer_ = piece_max_;
    std::nth_element(buffer_.begin(), buffer_.begin() + (k - 1), buffer_.end(), std::greater<>());
    floor = buffer_[k - 1];
  }
  kept_.clear();
  for (size_t piece = 0; piece < piece_max_.size(); ++piece) {
    if (piece_max_[piece] < floor) continue;
    const int begin = static_cast<int>(piece) * kPiece;
    const int end = std::min(begin + kPiece, static_cast<int>(x_.size()));
    for (int id = begin; id < end; ++id) {
      if (x_[id] >= floor && x_[id] > -kInfinity) kept_.push_back(id);
    }
  }
  if (static_cast<int>(kept_.size()) <= k) return;
  std::nth_element(kept_.begin(), kept_.begin() + k, kept_.end(),
                   [this](int a, int b) { return ranks_before(a, b); });
  kept_.resize(k);
  std::sort(kept_.begin(), kept_.end());
}

void RowChooser::keep_at_least(float weight) {
  kept_.clear();
  for (int id = 0; id < static_cast<int>(w_.size()); ++id) {
    if (w_[id] >= weight && w_[id] > 0.0f) kept_.push_back(id);
  }
}

// Keeps the shortest prefix of kept_, by rank, whose weight reaches `mass`. Finds the last id of
// the prefix by splitting the candidates for it into buckets of equal logit range, again and again.
void RowChooser::keep_top_p(double mass) {
  constexpr int kBuckets = 1024;
  constexpr size_t kFewEnough = 256;
  std::vector<int> candidates = kept_;
  double before = 0;  // weight of everything that ranks before the candidates
  while (candidates.size() > kFewEnough) {
    const auto [low, high] = std::minmax_element(candidates.begin(), candidates.end(),
                                                 [this](int a, int b) { return x_[a] < x_[b]; });
    const double top = x_[*high];
    const double range = top - x_[*low];
    if (range == 0) break;
    const auto bucket_of = [&](int id) {
      return static_cast<int>((top - x_[id]) * ((kBuckets - 1) / range));
    };
    double weights[kBuckets] = {};
    for (int id : candidates) weights[bucket_of(id)] += w_[id];
    int bucket = 0;
    while (bucket + 1 < kBuckets && before + weights[bucket] < mass) before += weights[bucket++];
    while (bucket > 0 && weights[bucket] == 0) before -= weights[--bucket];
    std::erase_if(candidates, [&](int id) { return bucket_of(id) != bucket; });
  }
  std::sort(candidates.begin(), candidates.end(),
            [this](int a, int b) { return ranks_before(a, b); });
  int last = candidates.back();
  for (int id : candidates) {
    before += w_[id];
    if (before < mass) continue;
    last = id;
    break;
  }
  std::erase_if(kept_, [&](int id) { return ranks_before(last, id); });
}

}  // namespace treeattn::cpu
