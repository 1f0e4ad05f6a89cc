// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/accept_path.h"
#include "micro/common/elements.h"
#include "micro/common/trees.h"

namespace treeattn::micro {

// One setting for all requests of a batch.
struct AcceptSettings {
  AcceptRule rule = AcceptRule::kGreedy;
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
};

// Trees with their tokens, and room for what accept_path says about them.
struct AcceptBatch {
  AcceptSettings settings;
  std::vector<int32_t> parents, tokens, node_indptr, context_lens, depths, plan_status;
  std::vector<int32_t> path, num_accepted, status;
  std::vector<int64_t> next_tokens, emitted;
  std::vector<float> logprobs;  // empty: not asked for
  int num_requests = 0;
  int max_depth;

  // `depth`: max_depth as the caller gives it, unless a tree is deeper.
  AcceptBatch(const AcceptSettings& how, const std::vector<Parents>& trees,
              std::vector<int32_t> node_tokens, int depth = 0)
      : settings(how), tokens(std::move(node_tokens)), node_indptr{0}, max_depth(depth) {
    for (const Parents& tree : trees) {
      parents.insert(parents.end(), tree.begin(), tree.end());
      for (const int node_depth : node_depths(tree)) {
        depths.push_back(node_depth);
        max_depth = std::max(max_depth, node_depth);
      }
      node_indptr.push_back(static_cast<int32_t>(parents.size()));
    }
    num_requests = static_cast<int>(trees.size());
    context_lens.assign(num_requests, 0);
    plan_status.assign(num_requests, kOk);
    num_accepted.resize(num_requests);
    status.resize(num_requests);
    next_tokens.resize(num_requests);
    path.resize(num_requests * width());
    emitted.resize(num_requests * width());
  }

  int64_t width() const { return max_depth + 1; }

  // logits: [num_nodes or more, vocab_size]; uniforms: [num_nodes or more, 2].
  AcceptPathParams params(const Elements& logits, int vocab_size,
                          const std::vector<float>& uniforms) {
    return {.logits = logits.data(),
            .tokens = tokens.data(),
            .parents = parents.data(),
            .node_indptr = node_indptr.data(),
            .context_lens = context_lens.data(),
            .depths = depths.data(),
            .plan_status = plan_status.data(),
            .temperature = {.data = &settings.temperature, .stride = 0},
            .top_k = {.data = &settings.top_k, .stride = 0},
            .top_p = {.data = &settings.top_p, .stride = 0},
            .min_p = {.data = &settings.min_p, .stride = 0},
            .seeds = {.data = nullptr, .stride = 0},
            .drafts = {},
            .allowed = nullptr,
            .uniforms = uniforms.data(),
            .path = path.data(),
            .num_accepted = num_accepted.data(),
            .next_tokens = next_tokens.data(),
            .status = status.data(),
            .emitted = emitted.data(),
            .logprobs = logprobs.empty() ? nullptr : logprobs.data(),
            .processed_logprobs = nullptr,
            .counts = {},
            .typical_epsilon = 0,
            .typical_delta = 0,
            .stride_logits = vocab_size,
            .stride_allowed = 0,
            .num_requests = num_requests,
            .num_nodes = static_cast<int>(parents.size()),
            .vocab_size = vocab_size,
            .max_depth = max_depth,
            .rule = settings.rule,
            .dtype = logits.dtype(),
            .wide_tokens = false};
  }
};

// What the op does on one thread.
inline void call_accept_path(const AcceptPathParams& params) {
  cpu::check_accept_path(params);
  cpu::accept_path(params, 0, params.num_requests);
}

}  // namespace treeattn::micro
