// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/launch.h"
#include "cuda/plan_tree/depth_first.cuh"
#include "cuda/plan_tree/plan_tree.h"

namespace treeattn::cuda {
namespace {

constexpr int kNodesPerClearCta = 512;

struct PlanShared {
  TourShared tour;
  int first_bad;  // request
  int invalid;
  int max_depth;
};

// Requests before this one have offsets that do not decrease and stay within the rows.
__device__ int first_bad_request(const PlanTreeParams& p, PlanShared& s) {
  if (threadIdx.x == 0) s.first_bad = p.node_indptr[0] == 0 ? p.num_requests : 0;
  __syncthreads();  // first_bad is set
  for (int b = static_cast<int>(threadIdx.x); b < p.num_requests; b += kPlanThreads) {
    const int end = p.node_indptr[b + 1];
    if (end < p.node_indptr[b] || end > p.num_nodes) atomicMin(&s.first_bad, b);
  }
  __syncthreads();  // first_bad is final
  return s.first_bad;
}

__device__ void clear_rows(const PlanTreeParams& p, const PlanWork& work, int begin, int end) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = begin + thread; i < end; i += kPlanThreads) {
    p.depths[i] = p.positions[i] = p.order[i] = 0;
    p.slot_mapping[i] = -1;
    work.subtree_ends(p.num_requests)[i] = 0;
  }
  const int64_t last_word = int64_t{end} * p.num_words;
  for (int64_t i = int64_t{begin} * p.num_words + thread; i < last_word; i += kPlanThreads) {
    p.ancestors[i] = 0;
  }
}

__device__ bool parents_are_valid(const int32_t* parents, int num_nodes, PlanShared& s) {
  if (threadIdx.x == 0) s.invalid = 0;
  __syncthreads();  // invalid is set
  const bool in_tour = num_nodes <= kMaxParallelNodes;
  bool valid = true;
  for (int i = static_cast<int>(threadIdx.x); i < num_nodes; i += kPlanThreads) {
    const int parent = parents[i];
    valid &= i == 0 ? parent == -1 : parent >= 0 && parent < i;
    if (in_tour) s.tour.parents[i] = parent;
  }
  if (!valid) atomicOr(&s.invalid, 1);
  __syncthreads();  // all parents are looked at, and in shared memory
  return s.invalid == 0;
}

// Whether the table lists every block that attention reads, and every block of a default slot.
__device__ bool table_is_valid(const PlanTreeParams& p, int request, int num_nodes) {
  const int64_t context_len = p.context_lens[request];
  if (context_len < 0 || context_len + num_nodes > kMaxKeys) return false;
  const int64_t covered = context_len + (p.slots_in == nullptr ? num_nodes : 0);
  const uint32_t size = static_cast<uint32_t>(p.block_size);
  const uint32_t needed = (static_cast<uint32_t>(covered) + size - 1) / size;
  if (needed > static_cast<uint32_t>(p.max_blocks)) return false;
  const int32_t* table = p.block_table + request * p.stride_block_table;
  bool valid = true;
  for (uint32_t i = threadIdx.x; i < needed; i += kPlanThreads) valid &= table[i] >= 0;
  return valid;
}

// The row of a node: bits of the path to the root. Ids fall along it, and words with them.
__device__ void write_ancestors(uint32_t* row, int num_words, const int32_t* parents, int node) {
  for (int word = num_words - 1; word >= 0; --word) {
    uint32_t bits = 0;
    for (; node >= 0 && node / 32 == word; node = parents[node]) bits |= 1u << node % 32;
    row[word] = bits;
  }
}

// Writes all rows of a request whose table is valid, and the depth of its deepest node; false when
// a slot is not.
__device__ bool write_rows(const PlanTreeParams& p, int request, const TreeRows& t, PlanShared& s) {
  const int64_t begin = p.node_indptr[request];
  const int context_len = p.context_lens[request];
  const int32_t* table = p.block_table + request * p.stride_block_table;
  bool valid = true;
  int max_depth = 0;
  for (int i = static_cast<int>(threadIdx.x); i < t.num_nodes; i += kPlanThreads) {
    const int depth = t.depths[i];
    max_depth = depth > max_depth ? depth : max_depth;
    t.positions[i] = context_len + depth;
    int64_t slot;
    if (p.slots_in != nullptr) {
      slot = p.slots_in[begin + i];
    } else {
      const int logical = context_len + i;
      slot = int64_t{table[logical / p.block_size]} * p.block_size + logical % p.block_size;
    }
    valid &= slot >= 0;
    p.slot_mapping[begin + i] = slot;
    write_ancestors(p.ancestors + (begin + i) * p.num_words, p.num_words, t.parents, i);
  }
  atomicMax(&s.max_depth, max_depth);
  return valid;
}

// CTA b < num_requests plans request b. The CTAs after those clear the rows that belong to nobody
// and the counters of later kernels. No CTA waits for another. A request whose offsets are good
// writes its own rows, all of them, and no others; one whose offsets are not writes its status
// alone, and its rows, whatever they are, lie behind the last good request.
__global__ __launch_bounds__(kPlanThreads,
                             2) void plan_tree_kernel(const __grid_constant__ PlanTreeParams p,
                                                      const __grid_constant__ PlanWork work) {
  PlanShared& s = *reinterpret_cast<PlanShared*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x);
  const int first_bad = first_bad_request(p, s);
  const int request = static_cast<int>(blockIdx.x);
  if (request >= p.num_requests) {
    const int cta = request - p.num_requests;
    const int num_ctas = static_cast<int>(gridDim.x) - p.num_requests;
    const int owned = first_bad > 0 ? p.node_indptr[first_bad] : 0;
    const int first = cta * kNodesPerClearCta;
    const int last = first + kNodesPerClearCta;
    clear_rows(p, work, first > owned ? first : owned, last < p.num_nodes ? last : p.num_nodes);
    int32_t* const arrivals = work.arrivals(p.num_requests, p.num_nodes);
    const int64_t num_arrivals = work.num_arrivals(p.num_requests, p.num_nodes);
    for (int64_t i = int64_t{cta} * kPlanThreads + thread; i < num_arrivals;
         i += int64_t{num_ctas} * kPlanThreads) {
      arrivals[i] = 0;
    }
    if (cta == 0 && thread < kRemapHeaderSize) work.remap_header()[thread] = 0;
    return;
  }
  const int begin = request < first_bad ? p.node_indptr[request] : 0;
  const int num_nodes = request < first_bad ? p.node_indptr[request + 1] - begin : 0;
  if (num_nodes == 0) {
    if (thread == 0) {
      p.status[request] = request < first_bad ? kInactive : kInvalid;
      work.max_depths()[request] = 0;
    }
    return;
  }
  bool valid =
      num_nodes <= int64_t{p.num_words} * 32 && parents_are_valid(p.parents + begin, num_nodes, s);
  if (valid) {
    const TreeRows t{.parents = num_nodes <= kMaxParallelNodes ? s.tour.parents : p.parents + begin,
                     .depths = p.depths + begin,
                     .positions = p.positions + begin,
                     .order = p.order + begin,
                     .subtree_ends = work.subtree_ends(p.num_requests) + begin,
                     .num_nodes = num_nodes};
    if (thread == 0) s.max_depth = 0;
    if (num_nodes <= kMaxParallelNodes) {
      order_by_tour(s.tour, t);
    } else {
      order_by_one_thread(t);
    }
    __syncthreads();  // depths and order are complete
    bool ok = table_is_valid(p, request, num_nodes);
    if (!ok) atomicOr(&s.invalid, 1);
    __syncthreads();  // the verdict on the table
    if (s.invalid == 0) {
      ok = write_rows(p, request, t, s);
      __syncthreads();  // everyone has read `invalid`
      if (!ok) atomicOr(&s.invalid, 1);
      __syncthreads();  // the verdict on slots and depths
    }
    valid = s.invalid == 0 && (p.max_depth < 0 || s.max_depth <= p.max_depth);
  }
  if (thread == 0) {
    p.status[request] = valid ? kOk : kInvalid;
    work.max_depths()[request] = valid ? s.max_depth : 0;
  }
  if (!valid) {
    __syncthreads();  // no row is written after it is cleared
    clear_rows(p, work, begin, begin + num_nodes);
  }
}

}  // namespace

void plan_tree(const PlanTreeParams& p, const PlanWork& work, cudaStream_t stream) {
  const int num_clear_ctas = 1 + p.num_nodes / kNodesPerClearCta;
  launch(plan_tree_kernel, p.num_requests + num_clear_ctas, kPlanThreads, sizeof(PlanShared),
         stream, p, work);
}

}  // namespace treeattn::cuda
