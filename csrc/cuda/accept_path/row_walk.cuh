// SPDX-License-Identifier: Apache-2.0
// Rules greedy and target, row by row.
#pragma once

#include "cuda/accept_path/row_choice.cuh"
#include "cuda/accept_path/walk.cuh"

namespace treeattn::cuda {

struct RowSaid {
  Step step;
  float processed_log_prob;  // of its token, under the law that it was chosen from
};

// What the rule makes of one row. Called by all threads of the CTA.
template <class T, bool kDraws>
__device__ __forceinline__ RowSaid read_row(const AcceptPathParams& p, const RowShared& s,
                                            int request, int64_t row_idx) {
  if (threadIdx.x == 0) count(Counter::kRowsRead);
  const Row<T> row = row_of<T>(p, row_idx);
  RowSaid said{.step = {.token = -1, .status = kOk, .child = -1, .log_prob = 0.0f},
               .processed_log_prob = 0.0f};
  Step& step = said.step;
  float max = 0.0f;
  if (!kDraws || value_or(p.temperature, request, 1.0f) == 0.0f) {
    const Choice choice = greedy(row, s);
    step.token = choice.token;
    step.status = choice.status;
    max = choice.max;
  } else {
    TargetLaw law;
    Prefix prefix;
    step.status = find_law(row, s, sampling_of(p, request), law, prefix);
    if (step.status == kOk) {
      step.token =
          draw_found(row, s, law, prefix, uniform_at(p, request, row_idx, RandomPurpose::kDraw));
      max = law.max;
      if (p.processed_logprobs != nullptr) {
        said.processed_log_prob = processed_log_prob(row, law, step.token);
      }
    }
  }
  if (step.status == kOk && p.logprobs != nullptr) {
    step.log_prob = log_prob(row, s, step.token, max);
  }
  return said;
}

// Goes down a live request's tree and reads the rows on the way, one after the other, nothing else.
// Called by all threads of a CTA, after a barrier behind clear_request.
template <class T, bool kDraws>
__device__ __forceinline__ void walk(const AcceptPathParams& p, const RowShared& s, int request,
                                     const Tree& tree) {
  for (int depth = 0, node = 0;; ++depth) {
    const RowSaid said = read_row<T, kDraws>(p, s, request, tree.start + node);
    Step step = said.step;
    if (step.status == kOk && depth < p.max_depth) {
      step.child = find_child(p, tree, node, step.token, &s.control()->child);
    }
    if (threadIdx.x == 0) {
      store_step(p, request, depth, node, step);
      if (p.processed_logprobs != nullptr && step.status == kOk) {
        store_global(p.processed_logprobs + request * (int64_t{p.max_depth} + 1) + depth,
                     said.processed_log_prob);
      }
      if (step.child < 0) {
        store_end(p, request, depth, step.status == kOk ? step.token : -1, step.status);
      }
    }
    if (step.child < 0) return;
    node = step.child;
  }
}

}  // namespace treeattn::cuda
