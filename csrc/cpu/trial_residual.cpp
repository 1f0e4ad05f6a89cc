// SPDX-License-Identifier: Apache-2.0
// The residuals of TrialRows: max(0, reach * r - q), summed up, drawn from, or at one id.
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

bool TrialRows::has_residual(int node) const {
  for (int i = first_child(node); i >= 0; i = next_sibling(i)) {
    if (nodes_[i].leader == i && nodes_[i].share > 0) return true;
  }
  return false;
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
  const float* w = target_.weights(row(r.node), law(r.node), piece);
  auto scale = static_cast<float>(r.reach * nodes_[r.node].scale);
  bool any_gone = false;
  for (int i = first_child(r.node); i >= 0; i = next_sibling(i)) {
    any_gone |= nodes_[i].is_gone && is_within(i, begin, count);
    const double share = nodes_[i].leader == i ? share_of(nodes_.data(), r, i) : 0;
    if (!(share > 0)) continue;
    const float* const q = draft_.weights(draft_row(i), nodes_[i].draft, piece);
    mass.excess = scan_.excess(u_, w, q, count, scale, static_cast<float>(share));
    w = u_;
    scale = 1.0f;
    if (p_.drafts.without_replacement && r.child >= 0 && nodes_[r.child].leader == i) {
      mass.left = left_of_piece(r.child, q, begin, count);
    }
  }
  if (any_gone) mass.excess = patch_gone(r, begin, count);
  return mass;
}

bool TrialRows::is_within(int node, int begin, int count) const {
  return token(node) >= begin && token(node) < begin + count;
}

// Puts right what a piece of u_ says of tokens that are gone; returns its sum.
double TrialRows::patch_gone(const Rejection& r, int begin, int count) {
  for (int i = first_child(r.node); i >= 0; i = next_sibling(i)) {
    if (!nodes_[i].is_gone || !is_within(i, begin, count)) continue;
    u_[token(i) - begin] = static_cast<float>(excess_at(r, static_cast<int>(token(i))));
  }
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += u_[i];
  return sum;
}

// The weight of a draft row's piece without the tokens that are gone and the rejected child's.
double TrialRows::left_of_piece(int child, const float* q, int begin, int count) {
  float left[kPiece];
  std::copy_n(q, count, left);
  for (int i = nodes_[child].leader; i >= 0; i = next_sibling(i)) {
    const bool tried =
        i == child || (nodes_[i].is_gone && nodes_[i].leader == nodes_[child].leader);
    if (tried && is_within(i, begin, count)) left[token(i) - begin] = 0.0f;
  }
  return scan_.mass(left, DType::kFloat32, left, count, 0.0f);
}

double TrialRows::excess_at(const Rejection& r, int id) const {
  double u = r.reach * nodes_[r.node].scale * target_.weight(row(r.node), law(r.node), id);
  for (int i = first_child(r.node); i >= 0; i = next_sibling(i)) {
    if (nodes_[i].leader != i) continue;
    const int gone = find_gone(i, id);
    const double share =
        gone >= 0 ? r.reach * nodes_[gone].own_share : share_of(nodes_.data(), r, i);
    if (share > 0) u -= share * draft_.weight(draft_row(i), nodes_[i].draft, id);
  }
  return std::max(0.0, u);
}

// The child that was rejected with that token of the leader's row; -1 when it is still there.
int TrialRows::find_gone(int leader, int id) const {
  for (int i = leader; i >= 0; i = next_sibling(i)) {
    if (nodes_[i].is_gone && nodes_[i].leader == leader && token(i) == id) return i;
  }
  return -1;
}

}  // namespace treeattn::cpu
