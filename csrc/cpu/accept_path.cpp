// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_path.h"

#include <algorithm>
#include <limits>

#include "cpu/accept_row.h"
#include "treeattn/check.h"
#include "treeattn/plan_tree.h"

namespace treeattn::cpu {
namespace {

bool is_live(const AcceptPathParams& p, int request) {
  return p.plan_status[request] == kOk && p.node_indptr[request] < p.node_indptr[request + 1];
}

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
  const int64_t width = int64_t{p.max_depth} + 1;
  int32_t* const path = p.path + request * width;
  int64_t* const emitted = p.emitted + request * width;
  float* const logprobs = p.logprobs != nullptr ? p.logprobs + request * width : nullptr;
  std::fill_n(path, width, -1);
  std::fill_n(emitted, width, int64_t{-1});
  if (logprobs != nullptr) {
    std::fill_n(logprobs, width, std::numeric_limits<float>::quiet_NaN());
  }
  p.num_accepted[request] = 0;
  p.next_tokens[request] = -1;
  if (!is_live(p, request)) {
    p.status[request] = p.plan_status[request] == kOk ? kInactive : p.plan_status[request];
    return;
  }
  p.status[request] = kOk;
  path[0] = 0;
  for (int depth = 0, node = 0;; ++depth) {
    const RowResult row = read(node, depth);
    if (row.status != kOk) {
      p.status[request] = row.status;
      return;
    }
    emitted[depth] = row.token;
    if (logprobs != nullptr) logprobs[depth] = row.log_prob;
    node = depth < p.max_depth ? find_child(p, request, node, row.token) : -1;
    if (node < 0) {
      p.next_tokens[request] = row.token;
      return;
    }
    path[depth + 1] = node;
    ++p.num_accepted[request];
  }
}

}  // namespace

void check_accept_path(const AcceptPathParams& p) {
  int previous = 0;
  for (int b = 0; b <= p.num_requests; ++b) {
    TREEATTN_CHECK(p.node_indptr[b] >= previous && p.node_indptr[b] <= p.num_nodes,
                   "accept_path: node_indptr[", b, "] must be in [", previous, ", ", p.num_nodes,
                   "], got ", p.node_indptr[b]);
    previous = p.node_indptr[b];
  }
  if (p.rule == AcceptRule::kGreedy) return;
  for (int b = 0; b < p.num_requests; ++b) {
    if (!is_live(p, b)) continue;
    const float temperature = value_or(p.temperature, b, 1.0f);
    TREEATTN_CHECK(temperature >= 0.0f, "accept_path: temperature[", b,
                   "] must be at least 0, got ", temperature);
    if (temperature == 0.0f) continue;
    const float top_p = value_or(p.top_p, b, 1.0f);
    TREEATTN_CHECK(top_p > 0.0f, "accept_path: top_p[", b, "] must be greater than 0, got ", top_p);
    const float min_p = value_or(p.min_p, b, 0.0f);
    TREEATTN_CHECK(min_p <= 1.0f, "accept_path: min_p[", b, "] must be at most 1, got ", min_p);
    TREEATTN_CHECK(p.seeds.data != nullptr || p.uniforms != nullptr,
                   "accept_path: rule target must have seeds or uniforms where temperature > 0, "
                   "request ",
                   b, " has temperature ", temperature);
  }
}

void accept_path(const AcceptPathParams& p, int begin, int end) {
  RowReader reader(p);
  for (int b = begin; b < end; ++b) {
    walk(p, b, [&](int node, int) { return reader.read(b, p.node_indptr[b] + node); });
  }
}

bool pays_to_read_ahead(const AcceptPathParams& p, int num_threads) {
  // Another thread joins within a few microseconds, as long as this many bytes of logits take.
  constexpr int64_t kWorthAThread = 64 * 1024;
  const int64_t row_bytes = int64_t{p.vocab_size} * element_size(p.dtype);
  return p.num_requests == 1 && num_threads > 1 && p.max_depth > 0 && row_bytes >= kWorthAThread;
}

void accept_path_ahead(const AcceptPathParams& p, const OnThreads& on_threads) {
  for (int b = 0; b < p.num_requests; ++b) walk(p, b, RowsAhead(p, b, on_threads));
}

}  // namespace treeattn::cpu
