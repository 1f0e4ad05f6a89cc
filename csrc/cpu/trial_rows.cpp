// SPDX-License-Identifier: Apache-2.0
#include "cpu/trial_rows.h"

#include "cpu/accept_row.h"

namespace treeattn::cpu {

TrialRows::TrialRows(const AcceptPathParams& p)
    : p_(p),
      scan_(row_scan()),
      chooser_(scan_),
      target_(scan_),
      draft_(scan_, p.drafts, p.vocab_size) {}

void TrialRows::begin(int request) {
  request_ = request;
  start_ = p_.node_indptr[request];
  found_ = summed_ = -1;
  sampling_ = sampling_of(p_, request);
  nodes_.assign(p_.node_indptr[request + 1] - start_, NodeState{});
  // Backwards, so that each child goes before its younger siblings. A plan may have been cut short
  // of the tree.
  for (int node = num_nodes() - 1; node > 0; --node) {
    if (depth(node) > p_.max_depth) continue;
    int& first = nodes_[parent(node)].first_child;
    nodes_[node].next_sibling = first;
    first = node;
  }
}

int64_t TrialRows::token(int node) const { return token_of(p_, start_ + node); }

LogitsRow TrialRows::row(int node) const { return row_of(p_, start_ + node); }

int TrialRows::draft_row(int child) const {
  return p_.drafts.rows != nullptr ? p_.drafts.rows[start_ + child]
                                   : static_cast<int>(start_) + parent(child);
}

Status TrialRows::read_target(int node) {
  NodeState& state = nodes_[node];
  if (state.has_target) return kOk;
  const Status status = chooser_.find_law(row(node), sampling_, state.target);
  found_ = status == kOk ? node : -1;
  if (status != kOk) return status;
  state.scale = 1 / state.target.total;
  state.has_target = true;
  return kOk;
}

Status TrialRows::read_draft(int child) {
  const int row = draft_row(child);
  for (int i = nodes_[parent(child)].first_leader; i >= 0; i = nodes_[i].next_leader) {
    if (draft_row(i) != row) continue;
    nodes_[child].leader = i;
    return kOk;
  }
  DraftLaw law;
  const Status status = draft_.read(row, law);
  if (status == kOk) lead(nodes_.data(), parent(child), child, law);
  return status;
}

double TrialRows::draft_weight(int child) const {
  const int leader = nodes_[child].leader;
  return draft_.weight(draft_row(child), nodes_[leader].draft, static_cast<int>(token(child)));
}

bool TrialRows::can_be_drawn(int child) const {
  return draft_scale(nodes_.data(), child) * draft_weight(child) > 0;
}

double TrialRows::ratio(int child) const {
  const double q = draft_scale(nodes_.data(), child) * draft_weight(child);
  return law_at(parent(child), static_cast<int>(token(child))) / q;
}

double TrialRows::coin(int node, uint32_t ordinal) const {
  if (p_.uniforms != nullptr) return p_.uniforms[2 * (start_ + node)];
  return coin_uniform(seed(), static_cast<uint32_t>(p_.context_lens[request_]), ordinal);
}

uint64_t TrialRows::seed() const {
  return static_cast<uint64_t>(value_or(p_.seeds, request_, int64_t{0}));
}

double TrialRows::uniform(int node, RandomPurpose purpose) const {
  if (p_.uniforms != nullptr) return p_.uniforms[2 * (start_ + node) + 1];
  const int position = p_.context_lens[request_] + depth(node);
  return draw_uniform(seed(), static_cast<uint32_t>(position), purpose);
}

int TrialRows::draw(int node, RandomPurpose purpose) {
  if (has_residual(nodes_.data(), node)) return draw_residual(node, uniform(node, purpose));
  if (found_ != node) chooser_.find_law(row(node), sampling_, nodes_[node].target);
  found_ = node;
  return chooser_.draw_found(uniform(node, purpose));
}

double TrialRows::probability(int child) const {
  const int node = parent(child);
  const float w = target_.weight(row(node), law(node), static_cast<int>(token(child)));
  return w / law(node).total;
}

double TrialRows::log_prob(int child) const {
  const int node = parent(child);
  return log_prob_of(law(node), chooser_.logit(row(node), static_cast<int>(token(child))));
}

Outcome TrialRows::greedy(int node) {
  const Choice choice = chooser_.greedy(row(node));
  return {.node = node, .token = choice.token, .status = choice.status};
}

float TrialRows::log_prob_after(int node, int token) {
  found_ = -1;
  return chooser_.log_prob(row(node), token);
}

float TrialRows::processed_log_prob_after(int node, int token) {
  read_target(node);
  return static_cast<float>(log_prob_of(law(node), chooser_.logit(row(node), token)));
}

}  // namespace treeattn::cpu
