// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "treeattn/dtype.h"
#include "treeattn/plan_tree.h"

namespace treeattn {

enum class AcceptRule : int {
  kGreedy = 0,
  kTarget = 1,
  kMultistep = 2,
  kSwor = 3,
  kBlock = 4,
  kTraversal = 5,
  kTypical = 6,
};
inline constexpr int kNumAcceptRules = 7;

constexpr const char* name_of(AcceptRule rule) {
  constexpr const char* kNames[kNumAcceptRules] = {"greedy", "target",    "multistep", "swor",
                                                   "block",  "traversal", "typical"};
  return kNames[static_cast<int>(rule)];
}

// The rules that compare the target's law with the one a child was drawn from.
constexpr bool reads_drafts(AcceptRule rule) {
  return rule >= AcceptRule::kMultistep && rule <= AcceptRule::kTraversal;
}

// The rules of accept_rules.h.
constexpr bool takes_trials(AcceptRule rule) { return rule >= AcceptRule::kMultistep; }

// A per-request sampling parameter; stride 0 broadcasts one value, nullptr means "not given".
template <class T>
struct PerRequest {
  const T* data;
  int64_t stride;
};

// The laws that children were drawn from.
struct DraftLaws {
  const void* laws;        // [num_rows, num_columns], last dimension contiguous, or nullptr
  const int32_t* rows;     // [num_nodes], or nullptr: the row of a node is its parent
  const int64_t* ids;      // [num_columns] target id of each column, or nullptr: the column
  const int32_t* columns;  // [vocab_size], -1 for none: what `ids` maps from; whoever runs the op
                           // fills it in
  int64_t stride;
  int num_rows;
  int num_columns;           // at most vocab_size
  DType dtype;               // of laws
  bool are_logits;           // a law is the softmax of its row; else the row itself
  bool without_replacement;  // siblings of one row were drawn like that, in order; else i.i.d.
};

// Sums over calls, of requests with status kOk. For each node on an accepted path at depth d:
// [0, d, r] counts that it had a child of rank r (the r-th in order), [1, d, r] that this child was
// accepted. What lies deeper or ranks higher is not counted.
struct AcceptCounts {
  int64_t* data;  // [2, num_depths, num_ranks] or nullptr
  int num_depths;
  int num_ranks;
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
  DraftLaws drafts;
  const uint32_t* allowed;    // [num_nodes, ceil(vocab_size / 32)] or nullptr
  const float* uniforms;      // [num_nodes, 2] or nullptr: the coin for trying the node, the draw
                              // made at it
  int32_t* path;              // [num_requests, max_depth + 1], padded with -1
  int32_t* num_accepted;      // [num_requests]
  int64_t* next_tokens;       // [num_requests]
  int32_t* status;            // [num_requests]
  int64_t* emitted;           // [num_requests, max_depth + 1]
  float* logprobs;            // [num_requests, max_depth + 1] or nullptr
  float* processed_logprobs;  // likewise, of the law that the rule works with
  AcceptCounts counts;
  double typical_epsilon;
  double typical_delta;
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
