// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_row.h"

#include "treeattn/philox.h"

namespace treeattn::cpu {

LogitsRow row_of(const AcceptPathParams& p, int64_t node) {
  return {
      .logits = static_cast<const char*>(p.logits) + node * p.stride_logits * element_size(p.dtype),
      .allowed = p.allowed != nullptr ? p.allowed + node * p.stride_allowed : nullptr,
      .dtype = p.dtype,
      .vocab_size = p.vocab_size};
}

bool is_greedy(const AcceptPathParams& p, int request) {
  return p.rule == AcceptRule::kGreedy || value_or(p.temperature, request, 1.0f) == 0.0f;
}

Sampling sampling_of(const AcceptPathParams& p, int request) {
  Sampling sampling{.temperature = value_or(p.temperature, request, 1.0f),
                    .top_k = 0,
                    .top_p = 1.0f,
                    .min_p = 0.0f};
  if (p.rule == AcceptRule::kTypical) return sampling;
  sampling.top_k = value_or(p.top_k, request, 0);
  sampling.top_p = value_or(p.top_p, request, 1.0f);
  sampling.min_p = value_or(p.min_p, request, 0.0f);
  return sampling;
}

RowResult RowReader::read(int request, int64_t node) {
  RowResult result{.token = -1, .status = kOk, .log_prob = 0, .processed_log_prob = 0};
  if (is_greedy(p_, request)) {
    const Choice choice = chooser_.greedy(row_of(p_, node));
    result.token = choice.token;
    result.status = choice.status;
  } else {
    draw(request, node, result);
  }
  if (result.status == kOk && p_.logprobs != nullptr) {
    result.log_prob = chooser_.log_prob(row_of(p_, node), result.token);
  }
  return result;
}

void RowReader::draw(int request, int64_t node, RowResult& result) {
  const LogitsRow row = row_of(p_, node);
  TargetLaw law;
  result.status = chooser_.find_law(row, sampling_of(p_, request), law);
  if (result.status != kOk) return;
  const auto position = static_cast<uint32_t>(p_.context_lens[request] + p_.depths[node]);
  const auto seed = static_cast<uint64_t>(value_or(p_.seeds, request, int64_t{0}));
  result.token = chooser_.draw_found(p_.uniforms != nullptr
                                         ? p_.uniforms[2 * node + 1]
                                         : draw_uniform(seed, position, RandomPurpose::kDraw));
  result.processed_log_prob =
      static_cast<float>(log_prob_of(law, chooser_.logit(row, result.token)));
}

}  // namespace treeattn::cpu
