// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_trials.h"

#include "cpu/accept_out.h"
#include "cpu/accept_row.h"

namespace treeattn::cpu {
namespace {

Outcome run_rule(const AcceptPathParams& p, TrialRows& rows) {
  switch (p.rule) {
    case AcceptRule::kBlock:
      return verify_leaves(rows, CoinOrder::kDepth);
    case AcceptRule::kTraversal:
      return verify_leaves(rows, CoinOrder::kTrial);
    case AcceptRule::kTypical:
      return accept_typical(rows, p.typical_epsilon, p.typical_delta);
    default:
      return try_siblings(rows);
  }
}

}  // namespace

bool takes_trials(const AcceptPathParams& p, int request) {
  return p.rule != AcceptRule::kTarget && !is_greedy(p, request);
}

void accept_by_trials(const AcceptPathParams& p, int request, TrialRows& rows) {
  const PathOut out = open_path(p, request);
  rows.begin(request);
  const Outcome outcome = run_rule(p, rows);
  const int num_accepted = rows.depth(outcome.node);
  p.status[request] = outcome.status;
  p.num_accepted[request] = num_accepted;
  p.next_tokens[request] = outcome.token;
  out.emitted[num_accepted] = outcome.token;
  for (int node = outcome.node, depth = num_accepted; depth >= 0; --depth) {
    out.path[depth] = node;
    if (depth > 0) out.emitted[depth - 1] = rows.token(node);
    if (out.emitted[depth] >= 0) {
      const int token = static_cast<int>(out.emitted[depth]);
      if (out.processed_logprobs != nullptr) {
        out.processed_logprobs[depth] = rows.processed_log_prob_after(node, token);
      }
      if (out.logprobs != nullptr) out.logprobs[depth] = rows.log_prob_after(node, token);
    }
    node = depth > 0 ? rows.parent(node) : node;
  }
}

}  // namespace treeattn::cpu
