// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/accept_path/accept_path.h"
#include "micro/accept_batch.h"
#include "micro/cuda/mirror.h"

namespace treeattn::micro {

// The same call with its arrays on the device; `logits` and `uniforms` lie there already.
inline AcceptPathParams params_on_device(Mirror& mirror, AcceptPathParams p, const void* logits,
                                         const float* uniforms) {
  const int64_t nodes = p.num_nodes, requests = p.num_requests;
  const int64_t steps = requests * (p.max_depth + 1);
  p.logits = logits;
  p.uniforms = uniforms;
  p.tokens = mirror.copy(static_cast<const int32_t*>(p.tokens), nodes);
  p.parents = mirror.copy(p.parents, nodes);
  p.node_indptr = mirror.copy(p.node_indptr, requests + 1);
  p.context_lens = mirror.copy(p.context_lens, requests);
  p.depths = mirror.copy(p.depths, nodes);
  p.plan_status = mirror.copy(p.plan_status, requests);
  p.temperature.data = mirror.copy(p.temperature.data, 1);
  p.top_k.data = mirror.copy(p.top_k.data, 1);
  p.top_p.data = mirror.copy(p.top_p.data, 1);
  p.min_p.data = mirror.copy(p.min_p.data, 1);
  p.path = mirror.room<int32_t>(steps);
  p.num_accepted = mirror.room<int32_t>(requests);
  p.next_tokens = mirror.room<int64_t>(requests);
  p.status = mirror.room<int32_t>(requests);
  p.emitted = mirror.room<int64_t>(steps);
  if (p.logprobs != nullptr) p.logprobs = mirror.room<float>(steps);
  return p;
}

inline void fetch_results(AcceptBatch& batch, const AcceptPathParams& on_device) {
  fetch(batch.path, on_device.path);
  fetch(batch.num_accepted, on_device.num_accepted);
  fetch(batch.next_tokens, on_device.next_tokens);
  fetch(batch.status, on_device.status);
  fetch(batch.emitted, on_device.emitted);
  if (!batch.logprobs.empty()) fetch(batch.logprobs, on_device.logprobs);
}

}  // namespace treeattn::micro
