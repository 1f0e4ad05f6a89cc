// SPDX-License-Identifier: Apache-2.0
#include "cpu/plan_tree.h"

#include <algorithm>

namespace treeattn::cpu {
namespace {

struct Tree {
  const int32_t* parents;
  int32_t* depths;
  int32_t* positions;
  int64_t* slots;
  uint32_t* ancestors;
  int32_t* order;
  int num_nodes;
  int num_words;
};

Tree tree_of(const PlanTreeParams& p, int request) {
  const int64_t start = p.node_indptr[request];
  return {.parents = p.parents + start,
          .depths = p.depths + start,
          .positions = p.positions + start,
          .slots = p.slot_mapping + start,
          .ancestors = p.ancestors + start * p.num_words,
          .order = p.order + start,
          .num_nodes = static_cast<int>(p.node_indptr[request + 1] - start),
          .num_words = p.num_words};
}

// A parent's row has no bit past the parent itself, which is before its child.
void fill_ancestors(const Tree& t) {
  std::fill_n(t.ancestors, int64_t{t.num_nodes} * t.num_words, 0u);
  for (int i = 0; i < t.num_nodes; ++i) {
    uint32_t* row = t.ancestors + int64_t{i} * t.num_words;
    if (i > 0) {
      const uint32_t* from = t.ancestors + int64_t{t.parents[i]} * t.num_words;
      std::copy_n(from, t.parents[i] / 32 + 1, row);
    }
    row[i / 32] |= 1u << (i % 32);
  }
}

// Preorder in one forward pass: a node's place is its parent's cursor, which then skips the node's
// subtree. `positions` is the scratch: subtree sizes at first, cursors of nodes already placed.
void fill_order(const Tree& t) {
  int32_t* const size_or_cursor = t.positions;
  std::fill_n(size_or_cursor, t.num_nodes, 1);
  for (int i = t.num_nodes - 1; i > 0; --i) size_or_cursor[t.parents[i]] += size_or_cursor[i];
  t.order[0] = 0;
  size_or_cursor[0] = 1;
  for (int i = 1; i < t.num_nodes; ++i) {
    const int place = size_or_cursor[t.parents[i]];
    size_or_cursor[t.parents[i]] += size_or_cursor[i];
    size_or_cursor[i] = place + 1;
    t.order[place] = i;
  }
}

// By default node i lies at logical slot context_len + i.
void fill_slots(const PlanTreeParams& p, int request, const Tree& t) {
  if (p.slots_in != nullptr) {
    std::copy_n(p.slots_in + p.node_indptr[request], t.num_nodes, t.slots);
    return;
  }
  const int context_len = p.context_lens[request];
  const int32_t* block =
      p.block_table + request * p.stride_block_table + context_len / p.block_size;
  int row = context_len % p.block_size;
  for (int i = 0; i < t.num_nodes; ++i) {
    t.slots[i] = int64_t{*block} * p.block_size + row;
    if (++row < p.block_size) continue;
    row = 0;
    ++block;
  }
}

}  // namespace

void plan_tree(const PlanTreeParams& p, int begin, int end) {
  for (int b = begin; b < end; ++b) {
    const Tree t = tree_of(p, b);
    p.status[b] = t.num_nodes > 0 ? kOk : kInactive;
    if (t.num_nodes == 0) continue;
    fill_ancestors(t);
    fill_order(t);
    fill_slots(p, b, t);
    for (int i = 0; i < t.num_nodes; ++i) {
      t.depths[i] = i > 0 ? t.depths[t.parents[i]] + 1 : 0;
      t.positions[i] = p.context_lens[b] + t.depths[i];
    }
  }
}

void clear_unplanned_rows(const PlanTreeParams& p) {
  const int64_t first = p.node_indptr[p.num_requests];
  const int64_t count = p.num_nodes - first;
  std::fill_n(p.depths + first, count, 0);
  std::fill_n(p.positions + first, count, 0);
  std::fill_n(p.order + first, count, 0);
  std::fill_n(p.slot_mapping + first, count, int64_t{-1});
  std::fill_n(p.ancestors + first * p.num_words, count * p.num_words, 0u);
}

}  // namespace treeattn::cpu
