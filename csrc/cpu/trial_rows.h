// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cpu/law_pieces.h"
#include "treeattn/accept_path.h"
#include "treeattn/accept_rules.h"

namespace treeattn::cpu {

// One request after the other, as the rules of treeattn/accept_rules.h see it, with the scratch of
// one thread. Rows are read when a rule asks for them, and no law is ever stored: a residual is
// made piece by piece when it is summed up or drawn from.
class TrialRows {
 public:
  explicit TrialRows(const AcceptPathParams& p);

  void begin(int request);

  // Of the accepted path, where the outcome has one: `node` is on it, `token` follows it.
  float log_prob_after(int node, int token);
  float processed_log_prob_after(int node, int token);

  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int parent(int node) const { return p_.parents[start_ + node]; }
  int depth(int node) const { return p_.depths[start_ + node]; }
  int first_child(int node) const { return nodes_[node].first_child; }
  int next_sibling(int node) const { return nodes_[node].next_sibling; }
  bool in_vocabulary(int node) const { return token(node) >= 0 && token(node) < p_.vocab_size; }
  int64_t token(int node) const;

  Status read_target(int node);
  bool has_target(int node) const { return nodes_[node].has_target; }
  Status read_draft(int child);
  bool can_be_drawn(int child) const;
  double ratio(int child) const;
  double reject(int child, double reach);

  double reach(int node) const { return nodes_[node].reach; }
  void set_reach(int node, double reach) { nodes_[node].reach = reach; }
  double coin(int node, uint32_t ordinal) const;
  int draw(int node, RandomPurpose purpose);

  double exp_minus_entropy(int node) { return target_.exp_minus_entropy(row(node), law(node)); }
  double probability(int child) const;
  double log_prob(int child) const;
  double score(int node) const { return nodes_[node].score; }
  void set_score(int node, double score) { nodes_[node].score = score; }
  bool samples() const { return p_.seeds.data != nullptr || p_.uniforms != nullptr; }
  Outcome greedy(int node);

 private:
  const TargetLaw& law(int node) const { return nodes_[node].target; }
  LogitsRow row(int node) const;
  int draft_row(int child) const;
  uint64_t seed() const;
  double uniform(int node, RandomPurpose purpose) const;
  double draft_weight(int child) const;

  int draw_residual(int node, double uniform);
  ResidualMass sum_excess(const Rejection& r);
  ResidualMass excess_piece(const Rejection& r, int piece);
  double left_of_piece(int child, const float* q, int begin, int count);
  double law_at(int node, int id) const;

  const AcceptPathParams& p_;
  RowScan scan_;
  RowChooser chooser_;
  TargetPieces target_;
  DraftPieces draft_;
  int request_ = -1;
  int64_t start_ = 0;
  Sampling sampling_{};
  std::vector<NodeState> nodes_;
  int found_ = -1;   // whose target the chooser has found last
  int summed_ = -1;  // whose residual piece_sum_ holds
  std::vector<double> piece_sum_;
  double u_[kPiece];
};

}  // namespace treeattn::cpu
