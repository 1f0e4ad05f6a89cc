// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_path.h"

#include "cpu/accept_out.h"
#include "cpu/accept_row.h"
#include "cpu/accept_trials.h"

namespace treeattn::cpu {
namespace {

// The first child that holds the token, as a node of the request; -1 when there is none.
int find_child(const AcceptPathParams& p, int request, int node, int64_t token) {
  const int64_t start = p.node_indptr[request];
  const int num_nodes = static_cast<int>(p.node_indptr[request + 1] - start);
  for (int child = node + 1; child < num_nodes; ++child) {
    if (p.parents[start + child] == node && token_of(p, start + child) == token) return child;
  }
  return -1;
}

// Follows the tokens that read(node, depth) returns for the rows on the way.
template <class Read>
void walk(const AcceptPathParams& p, int request, Read&& read) {
  const PathOut out = open_path(p, request);
  if (!is_live(p, request)) return;
  out.path[0] = 0;
  for (int depth = 0, node = 0;; ++depth) {
    const RowResult row = read(node, depth);
    if (row.status != kOk) {
      p.status[request] = row.status;
      return;
    }
    out.emitted[depth] = row.token;
    if (out.logprobs != nullptr) out.logprobs[depth] = row.log_prob;
    if (out.processed_logprobs != nullptr) {
      out.processed_logprobs[depth] = row.processed_log_prob;
    }
    node = depth < p.max_depth ? find_child(p, request, node, row.token) : -1;
    if (node < 0) {
      p.next_tokens[request] = row.token;
      return;
    }
    out.path[depth + 1] = node;
    ++p.num_accepted[request];
  }
}

}  // namespace

void accept_path(const AcceptPathParams& p, int begin, int end) {
  RowReader reader(p);
  TrialRows trials(p);
  for (int b = begin; b < end; ++b) {
    if (is_live(p, b) && takes_trials(p, b)) {
      accept_by_trials(p, b, trials);
    } else {
      walk(p, b, [&](int node, int) { return reader.read(b, p.node_indptr[b] + node); });
    }
  }
}

bool pays_to_read_ahead(const AcceptPathParams& p, int num_threads) {
  // Another thread joins within a few microseconds, as long as this many bytes of logits take.
  constexpr int64_t kWorthAThread = 64 * 1024;
  const int64_t row_bytes = int64_t{p.vocab_size} * element_size(p.dtype);
  const bool walks = p.rule == AcceptRule::kGreedy || p.rule == AcceptRule::kTarget;
  return walks && p.num_requests == 1 && num_threads > 1 && p.max_depth > 0 &&
         row_bytes >= kWorthAThread;
}

void accept_path_ahead(const AcceptPathParams& p, const OnThreads& on_threads) {
  for (int b = 0; b < p.num_requests; ++b) walk(p, b, RowsAhead(p, b, on_threads));
}

}  // namespace treeattn::cpu
