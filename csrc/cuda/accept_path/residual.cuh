// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/accept_path/draft_row.cuh"
#include "cuda/accept_path/row_choice.cuh"
#include "cuda/accept_path/walk.cuh"
#include "treeattn/residual.h"

namespace treeattn::cuda {

// Ids of a row that a warp sums up at once: as many as a chunk has, so that their sums fit where
// those of chunks lie. A lane has a few of them in hand at a time.
template <class T>
inline constexpr int kSegment = kChunkVecs * kVec<T>;
inline constexpr int kIdsInHand = 8;
inline constexpr int kBatchIds = kIdsInHand * kWarpSize;

// max(0, reach * r - q) at one node, in doubles, never stored: summed up, drawn from, or at one id.
// Functions that take the shared memory are called by all threads of a CTA of kRowThreads. A sum
// depends on the ids alone, not on where the row begins.
template <class T>
struct Residual {
  const AcceptPathParams& p;
  int64_t start;  // row of the batch that is node 0
  Row<T> row;
  const NodeState* nodes;
  Rejection rejection;
  Kept kept;
  double scale;

  __device__ Residual(const AcceptPathParams& p_, int64_t start_, const Row<T>& row_,
                      const NodeState* nodes_, const Rejection& rejection_)
      : p(p_),
        start(start_),
        row(row_),
        nodes(nodes_),
        rejection(rejection_),
        kept(kept_by(nodes_[rejection_.node].target, p_.vocab_size)),
        scale(rejection_.reach * nodes_[rejection_.node].scale) {}

  __device__ int num_segments() const { return (row.vocab_size + kSegment<T> - 1) / kSegment<T>; }

  __device__ DraftRow draft(int leader) const {
    const int64_t node = start + leader;
    return DraftRow(p.drafts, p.drafts.rows != nullptr
                                  ? load_global(p.drafts.rows + node)
                                  : static_cast<int>(start) + load_global(p.parents + node));
  }

  __device__ float target_weight(int id) const {
    const bool allowed =
        row.allowed == nullptr || (load_global(row.allowed + id / 32) >> id % 32 & 1);
    return allowed ? kept.weight(to_float(load_global(row.logits + id)), id) : 0.0f;
  }

  __device__ double law_at(int id) const {
    double u = scale * target_weight(id);
    for (int i = nodes[rejection.node].first_leader; i >= 0; i = nodes[i].next_leader) {
      u -= share_of(nodes, rejection, i) * draft(i).weight(nodes[i].draft, id);
    }
    return u > 0 ? u : 0;
  }

  // u[i] = what is left at id first + i * kWarpSize; 0 past the row. `left` gains the weights of
  // the rejected child's draft row that are still to be drawn.
  __device__ __forceinline__ void batch(int first, double (&u)[kIdsInHand], double& left) const {
#pragma unroll
    for (int i = 0; i < kIdsInHand; ++i) {
      const int id = first + i * kWarpSize;
      u[i] = id < row.vocab_size ? scale * target_weight(id) : 0;
    }
    for (int leader = nodes[rejection.node].first_leader; leader >= 0;
         leader = nodes[leader].next_leader) {
      const double share = share_of(nodes, rejection, leader);
      if (!(share > 0)) continue;
      const DraftRow q = draft(leader);
      const DraftLaw law = nodes[leader].draft;
      const bool loses = p.drafts.without_replacement && rejection.child >= 0 &&
                         nodes[rejection.child].leader == leader;
#pragma unroll
      for (int i = 0; i < kIdsInHand; ++i) {
        const int id = first + i * kWarpSize;
        if (id >= row.vocab_size) break;
        const float weight = q.weight(law, id);
        const double rest = u[i] - share * weight;
        u[i] = rest > 0 ? rest : 0;
        if (loses && weight > 0 && !was_tried(leader, id)) left += weight;
      }
    }
  }

  // The id is the token of a trial of that draft row, up to the rejected child.
  __device__ bool was_tried(int leader, int id) const {
    for (int i = leader; i >= 0 && i <= rejection.child; i = nodes[i].next_sibling) {
      if (nodes[i].leader == leader && token_of(p, start + i) == id) return true;
    }
    return false;
  }

  __device__ static double* segment_sums(const RowShared& s) {
    return reinterpret_cast<double*>(s.chunk_sums());
  }

  // Leaves its sums by segment.
  __device__ ResidualMass sum(const RowShared& s) const {
    double left = 0;
    for (int segment = warp_of_thread(); segment < num_segments(); segment += kRowWarps) {
      double sum = 0;
      for (int begin = 0; begin < kSegment<T>; begin += kBatchIds) {
        double u[kIdsInHand];
        batch(segment * kSegment<T> + begin + lane_of_thread(), u, left);
#pragma unroll
        for (int i = 0; i < kIdsInHand; ++i) sum += u[i];
      }
      sum = warp_sum(sum);
      if (lane_of_thread() == 0) segment_sums(s)[segment] = sum;
    }
    __syncthreads();  // segment sums are complete
    double excess = 0;
    for (int i = static_cast<int>(threadIdx.x); i < num_segments(); i += kRowThreads) {
      excess += segment_sums(s)[i];
    }
    return {.excess = cta_sum(excess, s.warp_sums()), .left = cta_sum(left, s.warp_sums())};
  }

  __device__ void normalise_sums(const RowShared& s, double total) const {
    for (int i = static_cast<int>(threadIdx.x); i < num_segments(); i += kRowThreads) {
      segment_sums(s)[i] /= total;
    }
  }

  // After sum: the smallest id whose cumulative mass exceeds uniform * total. Rounded sums may end
  // a segment just short of that: then the next id that has any is drawn, or the last of the row.
  __device__ int draw(const RowShared& s, double uniform) const {
    double total = 0;
    for (int i = 0; i < num_segments(); ++i) total += segment_sums(s)[i];
    const double target = uniform * total;
    if (warp_of_thread() == 0) {
      int drawn = -1, last = -1;
      double before = 0;
      for (int segment = 0; segment < num_segments() && drawn < 0; ++segment) {
        const double sum = segment_sums(s)[segment];
        if (before + sum > target || segment == num_segments() - 1) {
          drawn = find_in_segment(segment, target - before, last);
        }
        before += sum;
      }
      if (lane_of_thread() == 0) s.control()->id = drawn >= 0 ? drawn : last;
    }
    __syncthreads();  // the id is known
    const int id = s.control()->id;
    __syncthreads();  // control has been read
    return id;
  }

  // -1 where the segment has no such id; `last` becomes its last that has any mass. Called by a
  // warp; the same for all its lanes.
  __device__ int find_in_segment(int segment, double target, int& last) const {
    double before = 0, unused = 0;
    for (int begin = 0; begin < kSegment<T>; begin += kBatchIds) {
      double u[kIdsInHand];
      const int first = segment * kSegment<T> + begin;
      batch(first + lane_of_thread(), u, unused);
#pragma unroll
      for (int i = 0; i < kIdsInHand; ++i) {
        const double inclusive = before + warp_prefix(u[i]);
        const unsigned beyond = __ballot_sync(kAllLanes, u[i] > 0 && inclusive > target);
        if (beyond != 0) return first + i * kWarpSize + __ffs(static_cast<int>(beyond)) - 1;
        const unsigned some = __ballot_sync(kAllLanes, u[i] > 0);
        if (some != 0) last = first + i * kWarpSize + kWarpSize - 1 - __clz(static_cast<int>(some));
        before = __shfl_sync(kAllLanes, inclusive, kWarpSize - 1);
      }
    }
    return -1;
  }

  // Sum of w * (max - x) over the target's law.
  __device__ double depth_sum(const RowShared& s) const {
    double sum = 0;
    for (int id = static_cast<int>(threadIdx.x); id < row.vocab_size; id += kRowThreads) {
      const float w = target_weight(id);
      if (w > 0) sum += double{w} * (kept.weigh.max - to_float(load_global(row.logits + id)));
    }
    return cta_sum(sum, s.warp_sums());
  }
};

}  // namespace treeattn::cuda
