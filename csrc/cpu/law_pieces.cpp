// SPDX-License-Identifier: Apache-2.0
#include "cpu/law_pieces.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/convert.h"
#include "cpu/row_draw.h"

namespace treeattn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const void* logit_at(const LogitsRow& row, int id) {
  return static_cast<const char*>(row.logits) + int64_t{id} * element_size(row.dtype);
}

}  // namespace

const float* TargetPieces::weights(const LogitsRow& row, const TargetLaw& law, int piece) {
  const int begin = piece * kPiece, count = piece_size(row.vocab_size, piece);
  const void* x = logit_at(row, begin);
  DType dtype = row.dtype;
  const bool splits_ties = begin < law.tie_end && law.tie_end < begin + count;
  if (row.allowed != nullptr || splits_ties) {
    scan_.load(x_, row.logits, row.dtype, row.allowed, begin, count);
    x = x_;
    dtype = DType::kFloat32;
  }
  scan_.weigh(weighed_, x, dtype, count, law.max, law.temperature);
  if (law.cut == -kInfinity && law.min_weight == 0.0f) return weighed_;
  scan_.keep(kept_, x, dtype, weighed_, count, law.cut, begin < law.tie_end, law.min_weight);
  if (splits_ties) {
    for (int i = law.tie_end - begin; i < count; ++i) {
      if (x_[i] == law.cut) kept_[i] = 0.0f;
    }
  }
  return kept_;
}

float TargetPieces::weight(const LogitsRow& row, const TargetLaw& law, int id) const {
  if (row.allowed != nullptr && !(row.allowed[id / 32] >> id % 32 & 1)) return 0.0f;
  float x, w;
  scan_.load(&x, logit_at(row, id), row.dtype, nullptr, 0, 1);
  if (!(x > law.cut || (x == law.cut && id < law.tie_end))) return 0.0f;
  scan_.weigh(&w, &x, DType::kFloat32, 1, law.max, law.temperature);
  return w >= law.min_weight ? w : 0.0f;
}

double TargetPieces::exp_minus_entropy(const LogitsRow& row, const TargetLaw& law) {
  double sum = 0;
  for (int piece = 0; piece < num_pieces(row.vocab_size); ++piece) {
    const int begin = piece * kPiece, count = piece_size(row.vocab_size, piece);
    const float* const w = weights(row, law, piece);
    // An id that is not allowed weighs 0, whatever its logit.
    sum += scan_.depth_sum(logit_at(row, begin), row.dtype, w, count, law.max);
  }
  return std::exp(-sum / law.temperature / law.total) / law.total;
}

const void* DraftPieces::at(int row, int column) const {
  return static_cast<const char*>(laws_.laws) +
         (row * laws_.stride + column) * element_size(laws_.dtype);
}

Status DraftPieces::read(int row, DraftLaw& law) {
  float max = -kInfinity;
  for (int begin = 0; begin < laws_.num_columns; begin += kPiece) {
    const int count = std::min(kPiece, laws_.num_columns - begin);
    const RowPeak peak = scan_.peak(at(row, begin), laws_.dtype, count);
    if (!peak.finite) return kNonFinite;
    max = std::max(max, peak.max);
  }
  law = {.max = 0, .total = 1};
  if (!laws_.are_logits || max == -kInfinity) return kOk;
  law = {.max = max, .total = 0};
  for (int begin = 0; begin < laws_.num_columns; begin += kPiece) {
    const int count = std::min(kPiece, laws_.num_columns - begin);
    law.total += scan_.weigh(q_, at(row, begin), laws_.dtype, count, max, 1.0f);
  }
  return kOk;
}

const float* DraftPieces::weights(int row, const DraftLaw& law, int piece) {
  const int begin = piece * kPiece, count = piece_size(vocab_size_, piece);
  if (laws_.columns != nullptr) {
    gather(row, begin, count);
    if (laws_.are_logits) scan_.weigh(q_, q_, DType::kFloat32, count, law.max, 1.0f);
    return q_;
  }
  const int given = std::clamp(laws_.num_columns - begin, 0, count);
  if (laws_.are_logits) {
    scan_.weigh(q_, at(row, begin), laws_.dtype, given, law.max, 1.0f);
  } else {
    scan_.load(q_, at(row, 0), laws_.dtype, nullptr, begin, given);
  }
  std::fill(q_ + given, q_ + count, 0.0f);
  return q_;
}

// q_ = what the row says of ids begin .. begin + count.
void DraftPieces::gather(int row, int begin, int count) {
  const float missing = laws_.are_logits ? -kInfinity : 0.0f;
  const int32_t* const columns = laws_.columns + begin;
  portable::with_element(laws_.dtype, [&](auto element) {
    const auto* const elements = static_cast<const decltype(element)*>(at(row, 0));
    for (int i = 0; i < count; ++i) {
      q_[i] = columns[i] >= 0 ? portable::to_float(elements[columns[i]]) : missing;
    }
  });
}

float DraftPieces::weight(int row, const DraftLaw& law, int id) const {
  const int column = laws_.columns != nullptr ? laws_.columns[id] : id;
  if (column < 0 || column >= laws_.num_columns) return 0.0f;
  float q;
  scan_.load(&q, at(row, column), laws_.dtype, nullptr, 0, 1);
  if (laws_.are_logits) scan_.weigh(&q, &q, DType::kFloat32, 1, law.max, 1.0f);
  return q;
}

}  // namespace treeattn::cpu
