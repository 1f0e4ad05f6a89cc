// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "cpu/plan_tree.h"
#include "treeattn/check.h"

namespace treeattn::cpu {
namespace {

void check_indptr(const PlanTreeParams& p) {
  TREEATTN_CHECK(p.node_indptr[0] == 0, "plan_tree: node_indptr[0] must be 0, got ",
                 p.node_indptr[0]);
  for (int b = 0; b < p.num_requests; ++b) {
    TREEATTN_CHECK(p.node_indptr[b + 1] >= p.node_indptr[b],
                   "plan_tree: node_indptr must not decrease, got ", p.node_indptr[b], " then ",
                   p.node_indptr[b + 1], " at request ", b);
  }
  const int last = p.node_indptr[p.num_requests];
  if (p.max_depth >= 0) {
    TREEATTN_CHECK(last <= p.num_nodes, "plan_tree: node_indptr must end at no more than the ",
                   p.num_nodes, " rows of parents, got ", last);
  } else {
    TREEATTN_CHECK(last == p.num_nodes, "plan_tree: node_indptr must end at the ", p.num_nodes,
                   " rows of parents (fewer only when max_depth is given), got ", last);
  }
  for (int b = 0; b < p.num_requests; ++b) {
    const int64_t words = (int64_t{p.node_indptr[b + 1]} - p.node_indptr[b] + 31) / 32;
    TREEATTN_CHECK(words <= p.num_words, "plan_tree: ancestors must have ", words,
                   " words per node for request ", b, ", got ", p.num_words);
  }
}

void check_topology(const PlanTreeParams& p, int request, std::vector<int>& depths) {
  const int32_t* parents = p.parents + p.node_indptr[request];
  const int num_nodes = p.node_indptr[request + 1] - p.node_indptr[request];
  TREEATTN_CHECK(parents[0] == -1, "plan_tree: parents[0] of request ", request,
                 " must be -1 (the root), got ", parents[0]);
  depths.assign(num_nodes, 0);
  for (int i = 1; i < num_nodes; ++i) {
    const int parent = parents[i];
    TREEATTN_CHECK(parent != -1, "plan_tree: parents of request ", request,
                   " must have one root, node ", i, " is a second one (-1)");
    TREEATTN_CHECK(parent >= 0 && parent < i, "plan_tree: parents[", i, "] of request ", request,
                   " must be in [0, ", i, "), got ", parent);
    depths[i] = depths[parent] + 1;
    TREEATTN_CHECK(p.max_depth < 0 || depths[i] <= p.max_depth,
                   "plan_tree: max_depth must be at least the depth of every node, got ",
                   p.max_depth, ", node ", i, " of request ", request, " has depth ", depths[i]);
  }
}

// The table lists every block that attention reads, and every block of a default slot.
void check_table(const PlanTreeParams& p, int request) {
  const int num_nodes = p.node_indptr[request + 1] - p.node_indptr[request];
  const int64_t context_len = p.context_lens[request];
  TREEATTN_CHECK(context_len >= 0, "plan_tree: context_lens[", request,
                 "] must not be negative, got ", context_len);
  TREEATTN_CHECK(context_len + num_nodes <= kMaxKeys, "plan_tree: context_lens[", request, "] + ",
                 num_nodes, " nodes must be at most ", kMaxKeys, ", got ", context_len);
  const int64_t covered = context_len + (p.slots_in == nullptr ? num_nodes : 0);
  const int64_t needed = (covered + p.block_size - 1) / p.block_size;
  const int32_t* table = p.block_table + request * p.stride_block_table;
  const int64_t listed = std::min<int64_t>(needed, p.max_blocks);
  const int64_t given = std::find_if(table, table + listed, [](int x) { return x < 0; }) - table;
  TREEATTN_CHECK(given == needed, "plan_tree: block_table of request ", request, " must list ",
                 needed, " blocks for context_len ", context_len,
                 p.slots_in == nullptr ? " and the nodes" : "", ", got ", given,
                 given < listed ? " before a negative entry" : "");
}

int64_t slot_of(const PlanTreeParams& p, int request, int node) {
  if (p.slots_in != nullptr) return p.slots_in[p.node_indptr[request] + node];
  const int logical = p.context_lens[request] + node;
  const int block = p.block_table[request * p.stride_block_table + logical / p.block_size];
  return int64_t{block} * p.block_size + logical % p.block_size;
}

// Slots seen so far, by open addressing; at most half full.
class SlotSet {
 public:
  explicit SlotSet(int capacity)
      : slots_(std::bit_ceil(2 * static_cast<size_t>(capacity) + 2), -1) {}

  // False when the slot is already there.
  bool insert(int64_t slot) {
    const size_t mask = slots_.size() - 1;
    size_t i = static_cast<uint64_t>(slot) * 0x9e3779b97f4a7c15u >> 32 & mask;
    for (; slots_[i] != -1; i = (i + 1) & mask) {
      if (slots_[i] == slot) return false;
    }
    slots_[i] = slot;
    return true;
  }

 private:
  std::vector<int64_t> slots_;
};

[[noreturn]] void fail_shared_slot(const PlanTreeParams& p, int request, int node) {
  const int64_t slot = slot_of(p, request, node);
  for (int b = 0; b <= request; ++b) {
    for (int i = 0; i < p.node_indptr[b + 1] - p.node_indptr[b]; ++i) {
      if (slot_of(p, b, i) != slot) continue;
      fail("plan_tree: ", p.slots_in == nullptr ? "block_table" : "slot_mapping",
           " must give every node its own slot, node ", i, " of request ", b, " and node ", node,
           " of request ", request, " both got ", slot);
    }
  }
  fail("plan_tree: two nodes got slot ", slot);
}

// The blocks that hold a request's nodes, in the order of the nodes; neighbours differ.
void node_blocks(const PlanTreeParams& p, int request, std::vector<int64_t>& blocks) {
  const int num_nodes = p.node_indptr[request + 1] - p.node_indptr[request];
  blocks.clear();
  if (num_nodes > 0 && p.slots_in == nullptr) {
    const int32_t* table = p.block_table + request * p.stride_block_table;
    const int first = p.context_lens[request] / p.block_size;
    const int last = (p.context_lens[request] + num_nodes - 1) / p.block_size;
    blocks.assign(table + first, table + last + 1);
    return;
  }
  for (int i = 0; i < num_nodes; ++i) {
    const int64_t block = slot_of(p, request, i) / p.block_size;
    if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
  }
}

// With default slots, nodes in blocks that are listed once have slots of their own.
bool blocks_are_distinct(const PlanTreeParams& p, std::vector<int64_t>& blocks) {
  SlotSet seen(p.node_indptr[p.num_requests]);
  for (int b = 0; b < p.num_requests; ++b) {
    node_blocks(p, b, blocks);
    for (int64_t block : blocks) {
      if (!seen.insert(block)) return false;
    }
  }
  return true;
}

void check_slots(const PlanTreeParams& p) {
  SlotSet seen(p.node_indptr[p.num_requests]);
  for (int b = 0; b < p.num_requests; ++b) {
    for (int i = 0; i < p.node_indptr[b + 1] - p.node_indptr[b]; ++i) {
      const int64_t slot = slot_of(p, b, i);
      TREEATTN_CHECK(slot >= 0, "plan_tree: slot_mapping must not be negative, node ", i,
                     " of request ", b, " got ", slot);
      if (!seen.insert(slot)) fail_shared_slot(p, b, i);
    }
  }
}

// No node may overwrite a committed row of its own request.
void check_committed(const PlanTreeParams& p, int request, std::vector<int64_t>& blocks) {
  const int num_nodes = p.node_indptr[request + 1] - p.node_indptr[request];
  const int context_len = num_nodes > 0 ? p.context_lens[request] : 0;
  node_blocks(p, request, blocks);
  uint64_t filter = 0;  // bit block % 64 of every block that holds a node
  for (int64_t block : blocks) filter |= uint64_t{1} << (block % 64);
  const int32_t* table = p.block_table + request * p.stride_block_table;
  for (int64_t j = 0; j * p.block_size < context_len; ++j) {
    if ((filter >> (table[j] % 64) & 1) == 0) continue;
    if (std::find(blocks.begin(), blocks.end(), table[j]) == blocks.end()) continue;
    for (int i = 0; i < num_nodes; ++i) {
      const int64_t slot = slot_of(p, request, i);
      const int64_t logical = j * p.block_size + slot % p.block_size;
      TREEATTN_CHECK(slot / p.block_size != table[j] || logical >= context_len,
                     "plan_tree: ", p.slots_in == nullptr ? "block_table" : "slot_mapping",
                     " must not place a node in committed rows, node ", i, " of request ", request,
                     " got slot ", slot, ", its logical slot ", logical, " < context_len ",
                     context_len);
    }
  }
}

}  // namespace

void check_plan_tree(const PlanTreeParams& p) {
  check_indptr(p);
  std::vector<int> depths;
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.node_indptr[b] == p.node_indptr[b + 1]) continue;
    check_topology(p, b, depths);
    check_table(p, b);
  }
  std::vector<int64_t> blocks;
  if (p.slots_in != nullptr || !blocks_are_distinct(p, blocks)) check_slots(p);
  for (int b = 0; b < p.num_requests; ++b) check_committed(p, b, blocks);
}

}  // namespace treeattn::cpu
