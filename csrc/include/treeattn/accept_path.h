// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"
#include "treeattn/plan_tree.h"

namespace treeattn {

enum class AcceptRule : int { kGreedy = 0, kTarget = 1 };

// A per-request sampling parameter; stride 0 broadcasts one value, nullptr means "not given".
template <class T>
struct PerRequest {
  const T* data;
  int64_t stride;
};

// Walks each request's tree from the root along the tokens that the rule accepts.
struct AcceptPathParams {
  const void* logits;           // [num_nodes, vocab_size], last dimension contiguous
  const void* tokens;           // [num_nodes] int32 or int64
  const int32_t* parents;       // [num_nodes]
  const int32_t* node_indptr;   // [num_requests + 1]
  const int32_t* context_lens;  // [num_requests]
  const int32_t* depths;        // [num_nodes]
  const int32_t* plan_status;   // [num_requests]
  PerRequest<float> temperature;
  PerRequest<int32_t> top_k;
  PerRequest<float> top_p;
  PerRequest<float> min_p;
  PerRequest<int64_t> seeds;
  const uint32_t* allowed;  // [num_nodes, ceil(vocab_size / 32)] or nullptr
  const float* uniforms;    // [num_nodes, 2] or nullptr: column 1 is the draw made at the node
  int32_t* path;            // [num_requests, max_depth + 1], padded with -1
  int32_t* num_accepted;    // [num_requests]
  int64_t* next_tokens;     // [num_requests]
  int32_t* status;          // [num_requests]
  int64_t* emitted;         // [num_requests, max_depth + 1]
  float* logprobs;          // [num_requests, max_depth + 1] or nullptr
  int64_t stride_logits;
  int64_t stride_allowed;
  int num_requests;
  int num_nodes;
  int vocab_size;
  int max_depth;
  AcceptRule rule;
  DType dtype;       // of logits
  bool wide_tokens;  // tokens are int64
};

}  // namespace treeattn
