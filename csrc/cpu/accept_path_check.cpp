// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>
#include <vector>

#include "cpu/accept_out.h"
#include "cpu/accept_path.h"
#include "cpu/accept_row.h"
#include "treeattn/check.h"

namespace treeattn::cpu {
namespace {

void check_sampling(const AcceptPathParams& p, int b) {
  const float temperature = value_or(p.temperature, b, 1.0f);
  TREEATTN_CHECK(temperature >= 0.0f, "accept_path: temperature[", b, "] must be at least 0, got ",
                 temperature);
  if (temperature == 0.0f) return;
  const float top_p = value_or(p.top_p, b, 1.0f);
  TREEATTN_CHECK(top_p > 0.0f, "accept_path: top_p[", b, "] must be greater than 0, got ", top_p);
  const float min_p = value_or(p.min_p, b, 0.0f);
  TREEATTN_CHECK(min_p <= 1.0f, "accept_path: min_p[", b, "] must be at most 1, got ", min_p);
  if (p.rule == AcceptRule::kTypical) return;
  TREEATTN_CHECK(p.seeds.data != nullptr || p.uniforms != nullptr, "accept_path: rule ",
                 name_of(p.rule), " must have seeds or uniforms where temperature > 0, request ", b,
                 " has temperature ", temperature);
  TREEATTN_CHECK(!reads_drafts(p.rule) || p.drafts.laws != nullptr, "accept_path: rule ",
                 name_of(p.rule),
                 " must have draft_probs or draft_logits where temperature > 0, request ", b,
                 " has temperature ", temperature);
}

bool in_vocabulary(const AcceptPathParams& p, int64_t node) {
  return token_of(p, node) >= 0 && token_of(p, node) < p.vocab_size;
}

// Rows of nodes that can be accepted lie in the tensor. Padding may name any.
void check_rows(const AcceptPathParams& p, int b) {
  if (p.drafts.rows == nullptr) return;
  for (int64_t node = p.node_indptr[b] + 1; node < p.node_indptr[b + 1]; ++node) {
    const int row = p.drafts.rows[node];
    TREEATTN_CHECK(!in_vocabulary(p, node) || (row >= 0 && row < p.drafts.num_rows),
                   "accept_path: draft_rows[", node, "] must be in [0, ", p.drafts.num_rows,
                   "), got ", row);
  }
}

void check_chain(const AcceptPathParams& p, int b) {
  const int64_t start = p.node_indptr[b];
  for (int64_t node = start; node < p.node_indptr[b + 1]; ++node) {
    TREEATTN_CHECK(p.parents[node] == node - start - 1,
                   "accept_path: rule block takes chains only, parents[i] == i - 1; request ", b,
                   " has parents[", node - start, "] = ", p.parents[node]);
  }
}

// Without replacement no two siblings of one row hold one token.
void check_siblings(const AcceptPathParams& p, int b) {
  struct Drawn {
    int parent, row;
    int64_t token, node;
    auto key() const { return std::tuple(parent, row, token); }
  };
  std::vector<Drawn> drawn;
  for (int64_t node = p.node_indptr[b] + 1; node < p.node_indptr[b + 1]; ++node) {
    if (!in_vocabulary(p, node)) continue;
    const int row = p.drafts.rows != nullptr ? p.drafts.rows[node] : 0;
    drawn.push_back({p.parents[node], row, token_of(p, node), node});
  }
  std::sort(drawn.begin(), drawn.end(), [](const Drawn& x, const Drawn& y) {
    return std::tuple(x.key(), x.node) < std::tuple(y.key(), y.node);
  });
  const auto twin =
      std::adjacent_find(drawn.begin(), drawn.end(),
                         [](const Drawn& x, const Drawn& y) { return x.key() == y.key(); });
  if (twin == drawn.end()) return;
  fail("accept_path: rule ", name_of(p.rule),
       " with draws='swor' takes siblings with distinct tokens; tokens[", twin[1].node,
       "] and its sibling tokens[", twin[0].node, "] are both ", twin->token);
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
    check_sampling(p, b);
    if (p.rule == AcceptRule::kBlock) check_chain(p, b);
    if (!reads_drafts(p.rule) || is_greedy(p, b)) continue;
    check_rows(p, b);
    if (p.drafts.without_replacement) check_siblings(p, b);
  }
}

std::vector<int32_t> draft_columns(const AcceptPathParams& p) {
  const DraftLaws& drafts = p.drafts;
  if (!reads_drafts(p.rule) || drafts.ids == nullptr) return {};
  std::vector<int32_t> columns(p.vocab_size, -1);
  for (int column = 0; column < drafts.num_columns; ++column) {
    const int64_t id = drafts.ids[column];
    TREEATTN_CHECK(id >= 0 && id < p.vocab_size, "accept_path: draft_ids[", column,
                   "] must be in [0, ", p.vocab_size, "), got ", id);
    TREEATTN_CHECK(columns[id] < 0, "accept_path: draft_ids must be distinct; draft_ids[", column,
                   "] and draft_ids[", columns[id], "] are both ", id);
    columns[id] = column;
  }
  return columns;
}

}  // namespace treeattn::cpu
