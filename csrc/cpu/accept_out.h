// SPDX-License-Identifier: Apache-2.0
// What accept_path leaves of one request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "treeattn/accept_path.h"

namespace treeattn::cpu {

inline bool is_live(const AcceptPathParams& p, int request) {
  return p.plan_status[request] == kOk && p.node_indptr[request] < p.node_indptr[request + 1];
}

struct PathOut {
  int32_t* path;
  int64_t* emitted;
  float* logprobs;            // or nullptr
  float* processed_logprobs;  // or nullptr
};

// Clears a request's outputs to what an untouched request shows, status kOk where it is live.
inline PathOut open_path(const AcceptPathParams& p, int request) {
  const int64_t width = int64_t{p.max_depth} + 1, begin = request * width;
  const auto cleared = [&](auto* all, auto value) {
    if (all == nullptr) return all;
    std::fill_n(all + begin, width, value);
    return all + begin;
  };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  p.num_accepted[request] = 0;
  p.next_tokens[request] = -1;
  p.status[request] = p.plan_status[request] != kOk ? p.plan_status[request]
                      : is_live(p, request)         ? kOk
                                                    : kInactive;
  return {.path = cleared(p.path, -1),
          .emitted = cleared(p.emitted, int64_t{-1}),
          .logprobs = cleared(p.logprobs, kNaN),
          .processed_logprobs = cleared(p.processed_logprobs, kNaN)};
}

}  // namespace treeattn::cpu
