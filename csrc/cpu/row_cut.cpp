// SPDX-License-Identifier: Apache-2.0
#include "cpu/row_cut.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

namespace treeattn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kFew = 1024;  // so few are bisected where they are
constexpr int kTiny = 64;   // so few are not worth another list
constexpr int kStepsPerView = 6;
constexpr int kManyPieces = 4;
constexpr int kSample = 512;  // entries that a guess looks at
constexpr int kRun = 8;       // ... this many in a row
// The weight below the cut, as the sample shows it, lies within these factors of the truth with
// some three standard deviations when the row is flat. A miss costs one more pass.
constexpr double kLeast = 0.7, kMost = 1.35;

// Integers in the order of the floats; -0 becomes 0, its equal.
int32_t key_of(float x) {
  const auto bits = std::bit_cast<int32_t>(x + 0.0f);
  return bits ^ ((bits >> 31) & INT32_MAX);
}
float value_of(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & INT32_MAX)); }

}  // namespace

Cut CutSearch::by_count(const RowView& row, int k, float max) {
  // The k-th largest maximum of a piece is at most the k-th largest logit.
  float low = -kInfinity;
  const int num_pieces = (row.count + kPiece - 1) / kPiece;
  if (k <= num_pieces) {
    std::vector<float> best(row.piece_max, row.piece_max + num_pieces);
    std::nth_element(best.begin(), best.begin() + (k - 1), best.end(), std::greater<>());
    low = best[k - 1];
  }
  return run({.view = row,
              .w = nullptr,
              .total = double(row.count),
              .above = 0,
              .target = double(k),
              .low = low,
              .high = kInfinity,
              .max = max,
              .temperature = 1.0f});
}

Cut CutSearch::by_weight(const RowView& row, const float* w, double total, double target, float low,
                         float max, float temperature) {
  // Ids lighter than this weigh less than the rest beyond the target, all together.
  const double light = 0.999 * (total - target) / row.count;
  const double floor = light > 0 ? max + temperature * std::log(light) : -kInfinity;
  if (floor > low) low = static_cast<float>(std::max(floor, -double{FLT_MAX}));
  return run({.view = row,
              .w = w,
              .total = total,
              .above = 0,
              .target = target,
              .low = low,
              .high = kInfinity,
              .max = max,
              .temperature = temperature});
}

Cut CutSearch::run(Search s) {
  while (s.view.count > kFew && narrow(s)) {
  }
  // The largest value at and above which the weight reaches the target. Should rounding leave even
  // the weight from `low` on short of it, everything from there on stays.
  int32_t reaches = key_of(s.low);
  int32_t falls_short = std::min(key_of(s.high), key_of(s.max) + 1);
  for (int step = 1; falls_short - int64_t{reaches} > 1; ++step) {
    const auto middle = static_cast<int32_t>((int64_t{reaches} + falls_short) >> 1);
    (mass(s, value_of(middle)) >= s.target ? reaches : falls_short) = middle;
    if (step % kStepsPerView == 0 && s.view.count > kTiny) {
      adopt(s, part(s, value_of(reaches), value_of(falls_short)));
    }
  }
  return finish(s, value_of(reaches));
}

// Replaces the view by its part around the cut. False when that part is not much smaller.
bool CutSearch::narrow(Search& s) {
  float low = s.low, high = s.high;
  if (!leaves_little(s)) guess(s, low, high);
  Part around = part(s, low, high);
  if (s.above + around.above >= s.target) {
    low = high;
    high = s.high;
    around = part(s, low, high);
  } else if (low > s.low && s.above + around.above + around.weight < s.target) {
    high = low;
    low = s.low;
    around = part(s, low, high);
  }
  s.low = low;
  s.high = high;
  if (2 * int64_t{around.count} > s.view.count) return false;
  adopt(s, around);
  return true;
}

// Most pieces lie below the bound that is known already.
bool CutSearch::leaves_little(const Search& s) const {
  if (s.view.piece_max == nullptr) return false;
  const int num_pieces = (s.view.count + kPiece - 1) / kPiece;
  const auto left = std::count_if(s.view.piece_max, s.view.piece_max + num_pieces,
                                  [&](float max) { return max >= s.low; });
  return kManyPieces * left <= num_pieces;
}

void CutSearch::adopt(Search& s, const Part& part) {
  s.view = {.x = part.x, .dtype = DType::kFloat32, .count = part.count, .piece_max = nullptr};
  if (s.w != nullptr) s.w = part.w;
  s.above += part.above;
  s.total = part.weight;
  turn_ = 1 - turn_;
}

// The entries of low <= x < high.
CutSearch::Part CutSearch::part(const Search& s, float low, float high) {
  float* const x = lists_[turn_].floats(static_cast<size_t>(s.view.count) + kSplitRoom);
  Part part{.x = x, .w = nullptr, .above = 0, .weight = 0, .count = 0};
  for (int begin = 0; begin < s.view.count; begin += kPiece) {
    if (s.view.piece_max != nullptr && s.view.piece_max[begin / kPiece] < low) continue;
    const RowSplit piece = scan_.split(x + part.count, s.view.at(begin), s.view.dtype,
                                       s.w != nullptr ? s.w + begin : nullptr,
                                       std::min(kPiece, s.view.count - begin), low, high);
    part.above += piece.above;
    part.count += piece.num_between;
  }
  if (s.w == nullptr) {
    part.weight = part.count;
    return part;
  }
  float* const w = weights_[turn_].floats(static_cast<size_t>(part.count));
  for (int begin = 0; begin < part.count; begin += kPiece) {
    part.weight += scan_.weigh(w + begin, x + begin, DType::kFloat32,
                               std::min(kPiece, part.count - begin), s.max, s.temperature);
  }
  part.w = w;
  return part;
}

// Bounds between which the cut probably lies, from the weight below it in a sample of the view.
void CutSearch::guess(const Search& s, float& low, float& high) const {
  float x[kSample], w[kSample];
  const int step = s.view.count / (kSample / kRun);
  for (int i = 0; i < kSample; i += kRun) {
    const int begin = i / kRun * step;
    scan_.load(x + i, s.view.x, s.view.dtype, nullptr, begin, kRun);
    if (s.w != nullptr) std::memcpy(w + i, s.w + begin, sizeof(float) * kRun);
  }
  const float* const weights = s.w != nullptr ? w : nullptr;
  const double in_sample = scan_.mass(x, DType::kFloat32, weights, kSample, -kInfinity);
  const auto weight_below = [&](float bound) {
    return in_sample - scan_.mass(x, DType::kFloat32, weights, kSample, bound);
  };
  float smallest = kInfinity, largest = -kInfinity;
  for (float v : x) {
    if (v > -kInfinity && v < smallest) smallest = v;
    if (v > largest) largest = v;
  }
  if (!(smallest < largest)) return;
  const double below = (s.total - (s.target - s.above)) * kSample / s.view.count;
  const auto bisect = [&](double weight) {  // bounds on where the weight below reaches `weight`
    float from = smallest, to = largest;
    for (int i = 0; i < 12; ++i) {
      const float middle = from + (to - from) * 0.5f;
      (weight_below(middle) <= weight ? from : to) = middle;
    }
    return std::pair(from, to);
  };
  const double in_all_but_largest = weight_below(largest);
  low =
      std::max(low, in_all_but_largest <= kLeast * below ? largest : bisect(kLeast * below).first);
  if (in_all_but_largest > kMost * below) {
    high = std::min(high, bisect(kMost * below).second);
  }
}

// Weight of the view and what ranks before it, from `low` on.
double CutSearch::mass(const Search& s, float low) const {
  double sum = s.above;
  for (int begin = 0; begin < s.view.count; begin += kPiece) {
    if (s.view.piece_max != nullptr && s.view.piece_max[begin / kPiece] < low) continue;
    sum += scan_.mass(s.view.at(begin), s.view.dtype, s.w != nullptr ? s.w + begin : nullptr,
                      std::min(kPiece, s.view.count - begin), low);
  }
  return sum;
}

// As many ties at `value` as it takes to reach the target.
Cut CutSearch::finish(const Search& s, float value) const {
  float kept[kPiece];
  double sum = s.above;
  int num_ties = 0;
  for (int begin = 0; begin < s.view.count; begin += kPiece) {
    const RowKept piece =
        scan_.keep(kept, s.view.at(begin), s.view.dtype, s.w != nullptr ? s.w + begin : nullptr,
                   std::min(kPiece, s.view.count - begin), value, false, 0.0f);
    sum += piece.sum;
    num_ties += piece.num_ties;
  }
  float weight = 1.0f;
  if (s.w != nullptr) scan_.weigh(&weight, &value, DType::kFloat32, 1, s.max, s.temperature);
  const double needed = weight > 0.0f ? std::ceil((s.target - sum) / weight) : 1.0;
  if (!(needed < num_ties)) return {.value = value, .num_ties = Cut::kAllTies};
  return {.value = value, .num_ties = std::max(1, static_cast<int>(needed))};
}

}  // namespace treeattn::cpu
