// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_path.h"

#include <algorithm>
#include <limits>

#include "cpu/row_choice.h"
#include "treeattn/check.h"
#include "treeattn/philox.h"
#include "treeattn/plan_tree.h"

namespace treeattn::cpu {
namespace {

template <class T>
T value_or(const PerRequest<T>& values, int request, T otherwise) {
  return values.data != nullptr ? values.data[request * values.stride] : otherwise;
}

bool is_live(const AcceptPathParams& p, int request) {
  return p.plan_status[request] == kOk && p.node_indptr[request] < p.node_indptr[request + 1];
}

bool is_greedy(const AcceptPathParams& p, int request) {
  return p.rule == AcceptRule::kGreedy || value_or(p.temperature, request, 1.0f) == 0.0f;
}

int64_t token_of(const AcceptPathParams& p, int64_t node) {
  return p.wide_tokens ? static_cast<const int64_t*>(p.tokens)[node]
                       : static_cast<const int32_t*>(p.tokens)[node];
}

LogitsRow row_of(const AcceptPathParams& p, int64_t node) {
  return {
      .logits = static_cast<const char*>(p.logits) + node * p.stride_logits * element_size(p.dtype),
      .allowed = p.allowed != nullptr ? p.allowed + node * p.stride_allowed : nullptr,
      .dtype = p.dtype,
      .vocab_size = p.vocab_size};
}

// What the target says after `node`, a row of the batch.
Choice choose(const AcceptPathParams& p, RowChooser& chooser, int request, int64_t node) {
  if (is_greedy(p, request)) return chooser.greedy(row_of(p, node));
  const Sampling sampling{.temperature = value_or(p.temperature, request, 1.0f),
                          .top_k = value_or(p.top_k, request, 0),
                          .top_p = value_or(p.top_p, request, 1.0f),
                          .min_p = value_or(p.min_p, request, 0.0f)};
  const int position = p.context_lens[request] + p.depths[node];
  const double uniform =
      p.uniforms != nullptr
          ? p.uniforms[2 * node + 1]
          : philox_uniform(static_cast<uint64_t>(value_or(p.seeds, request, int64_t{0})),
                           static_cast<uint32_t>(position), 0, RandomPurpose::kDraw);
  return chooser.draw(row_of(p, node), sampling, uniform);
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

void walk(const AcceptPathParams& p, RowChooser& chooser, int request) {
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
  const int64_t start = p.node_indptr[request];
  p.status[request] = kOk;
  path[0] = 0;
  for (int depth = 0, node = 0;; ++depth) {
    const Choice choice = choose(p, chooser, request, start + node);
    if (choice.status != kOk) {
      p.status[request] = choice.status;
      return;
    }
    emitted[depth] = choice.token;
    if (logprobs != nullptr) {
      logprobs[depth] = chooser.log_prob(row_of(p, start + node), choice.token);
    }
    node = depth < p.max_depth ? find_child(p, request, node, choice.token) : -1;
    if (node < 0) {
      p.next_tokens[request] = choice.token;
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
  RowChooser chooser(row_scan());
  for (int b = begin; b < end; ++b) walk(p, chooser, b);
}

}  // namespace treeattn::cpu
