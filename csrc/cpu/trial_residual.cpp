// SPDX-License-Identifier: Apache-2.0
// The residuals of TrialRows: r and max(0, reach * r - q), summed up, drawn from, or at one id.
#include <algorithm>

#include "cpu/row_draw.h"
#include "cpu/trial_rows.h"

namespace treeattn::cpu {

double TrialRows::reject(int child, double reach) {
  const Rejection r{.node = parent(child), .child = child, .reach = reach};
  const ResidualMass mass = sum_excess(r);
  summed_ = -1;
  if (settle(nodes_.data(), r, mass, p_.drafts.without_replacement)) {
    for (double& sum : piece_sum_) sum /= mass.excess;
    summed_ = r.node;
  }
  return mass.excess;
}

int TrialRows::draw_residual(int node, double uniform) {
  const Rejection none{.node = node, .child = -1, .reach = 1};
  if (summed_ != node) sum_excess(none);
  return draw_from_pieces(piece_sum_, p_.vocab_size, uniform, [&](int piece) {
    excess_piece(none, piece);
    return u_;
  });
}

// Fills piece_sum_.
ResidualMass TrialRows::sum_excess(const Rejection& r) {
  ResidualMass all{.excess = 0, .left = 0};
  piece_sum_.resize(num_pieces(p_.vocab_size));
  for (size_t piece = 0; piece < piece_sum_.size(); ++piece) {
    const ResidualMass mass = excess_piece(r, static_cast<int>(piece));
    piece_sum_[piece] = mass.excess;
    all.excess += mass.excess;
    all.left += mass.left;
  }
  return all;
}

// u_ = what is left of a piece; returns its sum, and that of the rejected child's draft row.
ResidualMass TrialRows::excess_piece(const Rejection& r, int piece) {
  const int begin = piece * kPiece, count = piece_size(p_.vocab_size, piece);
  ResidualMass mass{.excess = 0, .left = 0};
  const float* const w = target_.weights(row(r.node), law(r.node), piece);
  scan_.scale(u_, w, count, r.reach * nodes_[r.node].scale);
  for (int i = nodes_[r.node].first_leader; i >= 0; i = nodes_[i].next_leader) {
    const double share = share_of(nodes_.data(), r, i);
    if (!(share > 0)) continue;
    const float* const q = draft_.weights(draft_row(i), nodes_[i].draft, piece);
    mass.excess = scan_.subtract(u_, q, count, share);
    if (p_.drafts.without_replacement && r.child >= 0 && nodes_[r.child].leader == i) {
      mass.left = left_of_piece(r.child, q, begin, count);
    }
  }
  return mass;
}

// The weight of a draft row's piece without the tokens of its trials up to the child.
double TrialRows::left_of_piece(int child, const float* q, int begin, int count) {
  float left[kPiece];
  std::copy_n(q, count, left);
  const int leader = nodes_[child].leader;
  for (int i = leader; i >= 0 && i <= child; i = next_sibling(i)) {
    const bool is_here =
        nodes_[i].leader == leader && token(i) >= begin && token(i) < begin + count;
    if (is_here) left[token(i) - begin] = 0.0f;
  }
  return scan_.sum(left, count);
}

// r at one id.
double TrialRows::law_at(int node, int id) const {
  double r = nodes_[node].scale * target_.weight(row(node), law(node), id);
  for (int i = nodes_[node].first_leader; i >= 0; i = nodes_[i].next_leader) {
    r -= nodes_[i].share * draft_.weight(draft_row(i), nodes_[i].draft, id);
  }
  return std::max(0.0, r);
}

}  // namespace treeattn::cpu
