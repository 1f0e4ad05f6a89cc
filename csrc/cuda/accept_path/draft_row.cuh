// SPDX-License-Identifier: Apache-2.0
// A row of draft_probs or draft_logits, as weights of the target's ids.
#pragma once

#include "cuda/accept_path/row_weight.cuh"
#include "treeattn/accept_path.h"
#include "treeattn/residual.h"

namespace treeattn::cuda {

struct DraftRow {
  const DraftLaws& laws;
  int64_t begin;  // of the row, in elements

  __device__ __forceinline__ DraftRow(const DraftLaws& laws_, int row)
      : laws(laws_), begin(row * laws_.stride) {}

  __device__ __forceinline__ float element(int column) const {
    switch (laws.dtype) {
      case DType::kBFloat16:
        return to_float(load_global(static_cast<const BFloat16*>(laws.laws) + begin + column));
      case DType::kFloat16:
        return to_float(load_global(static_cast<const Half*>(laws.laws) + begin + column));
      default:
        return load_global(static_cast<const float*>(laws.laws) + begin + column);
    }
  }

  __device__ __forceinline__ float weigh(float x, float max) const {
    if (!laws.are_logits) return x;
    return Weigh{.max = max, .scale = 1.44269504f, .unit_scale = 1.0f}(x);
  }

  // Ids without a column weigh 0.
  __device__ __forceinline__ float weight(const DraftLaw& law, int id) const {
    const int column = laws.columns != nullptr ? load_global(laws.columns + id) : id;
    if (column < 0 || column >= laws.num_columns) return 0.0f;
    return weigh(element(column), law.max);
  }

  // Reads the whole row: false where it holds NaN or +inf, and `law` is left alone. Called by all
  // threads of a CTA; `warp_sums` as in cta_sum.
  __device__ bool read(DraftLaw& law, Units* warp_sums) const {
    float max = -kInfinity;
    bool finite = true;
    for (int i = static_cast<int>(threadIdx.x); i < laws.num_columns; i += kRowThreads) {
      const float x = element(i);
      finite = finite && x < kInfinity;
      if (x > max) max = x;
    }
    constexpr uint32_t kBad = ~0u;
    const Units highest = cta_max(finite ? key_of<Float32>(max) : kBad, warp_sums);
    if (highest == kBad) return false;
    max = value_of<Float32>(static_cast<uint32_t>(highest));
    law = {.max = 0.0f, .total = 1};
    if (!laws.are_logits || max == -kInfinity) return true;
    double total = 0;
    for (int i = static_cast<int>(threadIdx.x); i < laws.num_columns; i += kRowThreads) {
      total += weigh(element(i), max);
    }
    law = {.max = max, .total = cta_sum(total, warp_sums)};
    return true;
  }
};

}  // namespace treeattn::cuda
