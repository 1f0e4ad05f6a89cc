// SPDX-License-Identifier: Apache-2.0
// A request's sampling parameters, and its random numbers.
#pragma once

#include "cuda/common/ptx.cuh"
#include "treeattn/accept_path.h"
#include "treeattn/philox.h"

namespace treeattn::cuda {

template <class T>
__device__ __forceinline__ T value_or(const PerRequest<T>& values, int request, T otherwise) {
  return values.data != nullptr ? load_global(values.data + request * values.stride) : otherwise;
}

__device__ __forceinline__ bool is_greedy(const AcceptPathParams& p, int request) {
  return p.rule == AcceptRule::kGreedy || value_or(p.temperature, request, 1.0f) == 0.0f;
}

// Applied in this order.
struct Sampling {
  float temperature;  // > 0
  int top_k;          // <= 0: off
  float top_p;        // >= 1: off
  float min_p;        // <= 0: off
};

// Of a request that is not greedy; rule typical knows no filters.
__device__ __forceinline__ Sampling sampling_of(const AcceptPathParams& p, int request) {
  const bool filters = p.rule != AcceptRule::kTypical;
  return {.temperature = value_or(p.temperature, request, 1.0f),
          .top_k = filters ? value_or(p.top_k, request, 0) : 0,
          .top_p = filters ? value_or(p.top_p, request, 1.0f) : 1.0f,
          .min_p = filters ? value_or(p.min_p, request, 0.0f) : 0.0f};
}

__device__ __forceinline__ bool sampling_is_valid(const AcceptPathParams& p, int request) {
  if (is_greedy(p, request)) return true;
  const bool can_draw = p.seeds.data != nullptr || p.uniforms != nullptr;
  return value_or(p.temperature, request, 1.0f) >= 0.0f &&
         value_or(p.top_p, request, 1.0f) > 0.0f && value_or(p.min_p, request, 0.0f) <= 1.0f &&
         (can_draw || p.rule == AcceptRule::kTypical);
}

__device__ __forceinline__ uint64_t seed_of(const AcceptPathParams& p, int request) {
  return static_cast<uint64_t>(value_or(p.seeds, request, int64_t{0}));
}

// The draw made at a node; `row_idx` is its row of the batch.
__device__ __forceinline__ double uniform_at(const AcceptPathParams& p, int request,
                                             int64_t row_idx, RandomPurpose purpose) {
  if (p.uniforms != nullptr) return load_global(p.uniforms + 2 * row_idx + 1);
  const auto position = static_cast<uint32_t>(load_global(p.context_lens + request)) +
                        static_cast<uint32_t>(load_global(p.depths + row_idx));
  return draw_uniform(seed_of(p, request), position, purpose);
}

// The coin for trying a node.
__device__ __forceinline__ double coin_at(const AcceptPathParams& p, int request, int64_t row_idx,
                                          uint32_t ordinal) {
  if (p.uniforms != nullptr) return load_global(p.uniforms + 2 * row_idx);
  const auto position = static_cast<uint32_t>(load_global(p.context_lens + request));
  return coin_uniform(seed_of(p, request), position, ordinal);
}

}  // namespace treeattn::cuda
