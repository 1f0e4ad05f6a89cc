// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_row.h"

#include "treeattn/philox.h"

namespace treeattn::cpu {
namespace {

LogitsRow row_of(const AcceptPathParams& p, int64_t node) {
  return {
      .logits = static_cast<const char*>(p.logits) + node * p.stride_logits * element_size(p.dtype),
      .allowed = p.allowed != nullptr ? p.allowed + node * p.stride_allowed : nullptr,
      .dtype = p.dtype,
      .vocab_size = p.vocab_size};
}

}  // namespace

RowResult RowReader::read(int request, int64_t node) {
  const Choice choice = choose(request, node);
  RowResult result{.token = choice.token, .status = choice.status, .log_prob = 0};
  if (choice.status == kOk && p_.logprobs != nullptr) {
    result.log_prob = chooser_.log_prob(row_of(p_, node), choice.token);
  }
  return result;
}

Choice RowReader::choose(int request, int64_t node) {
  const float temperature = value_or(p_.temperature, request, 1.0f);
  if (p_.rule == AcceptRule::kGreedy || temperature == 0.0f) {
    return chooser_.greedy(row_of(p_, node));
  }
  const Sampling sampling{.temperature = temperature,
                          .top_k = value_or(p_.top_k, request, 0),
                          .top_p = value_or(p_.top_p, request, 1.0f),
                          .min_p = value_or(p_.min_p, request, 0.0f)};
  const int position = p_.context_lens[request] + p_.depths[node];
  const double uniform =
      p_.uniforms != nullptr
          ? p_.uniforms[2 * node + 1]
          : philox_uniform(static_cast<uint64_t>(value_or(p_.seeds, request, int64_t{0})),
                           static_cast<uint32_t>(position), 0, RandomPurpose::kDraw);
  return chooser_.draw(row_of(p_, node), sampling, uniform);
}

}  // namespace treeattn::cpu
