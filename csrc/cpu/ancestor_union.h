// SPDX-License-Identifier: Apache-2.0
// Who sees which tree node. Included by VECTOR_SOURCES only.
#pragma once

#include "cpu/key_tile.h"
#include "treeattn/tree_attention.h"

namespace treeattn::cpu::TREEATTN_ISA {

// The plan's facts about the nodes of one request; node ids are within the request.
struct RequestTree {
  const TreeAttentionParams& p;
  int begin;  // first row of the request
  int num_nodes;
  int context_len;

  RequestTree(const TreeAttentionParams& params, int request)
      : p(params),
        begin(p.node_indptr[request]),
        num_nodes(p.node_indptr[request + 1] - begin),
        context_len(p.context_lens[request]) {}

  int node_at(int place) const { return p.order[begin + place]; }
  int depth(int node) const { return p.depths[begin + node]; }
  int64_t slot(int node) const { return p.slot_mapping[begin + node]; }
  const uint32_t* ancestors(int node) const {
    return p.ancestors + int64_t{begin + node} * p.num_words;
  }
  // Calls f(id) for the ancestors of a node from a depth down to the node itself. Ids grow along a
  // path, so the n-th set bit is the ancestor of depth n.
  template <class F>
  void for_each_ancestor(int node, int first_depth, F&& f) const {
    const uint32_t* words = ancestors(node);
    int to_skip = first_depth;
    for (int word = 0; word <= node / 32; ++word) {
      uint32_t bits = words[word];
      const int count = __builtin_popcount(bits);
      if (to_skip >= count) {
        to_skip -= count;
        continue;
      }
      for (; to_skip > 0; --to_skip) bits &= bits - 1;
      for (; bits != 0; bits &= bits - 1) f(word * 32 + __builtin_ctz(bits));
    }
  }
  // -1 for the root.
  int parent(int node) const {
    const uint32_t* words = ancestors(node);
    int word = node / 32;
    uint32_t bits = words[word] & ((1u << node % 32) - 1);
    while (bits == 0 && word > 0) bits = words[--word];
    return bits == 0 ? -1 : word * 32 + 31 - __builtin_clz(bits);
  }
};

// Up to 16 nodes, consecutive in depth-first order, and all their ancestors (themselves included)
// by depth, then id: in such a tile there are only a few more of them than nodes.
class TreeTile {
 public:
  // memory: [2 * 32 * num_words + 2] ints
  TreeTile(const RequestTree& tree, int first_place, int num_nodes, int* memory)
      : tree_(tree),
        num_nodes_(num_nodes),
        union_(memory),
        depth_begin_(memory + tree.p.num_words * 32) {
    for (int i = 0; i < num_nodes; ++i) {
      nodes_[i] = tree.node_at(first_place + i);
      positions_[i] = tree.context_len + tree.depth(nodes_[i]);
      max_depth_ = max_int(max_depth_, tree.depth(nodes_[i]));
    }
    sort_union_by_depth();
  }

  int num_nodes() const { return num_nodes_; }
  int node(int i) const { return nodes_[i]; }

  // Nodes see a whole tile of keys here or nothing: a node's own tile is not done as a union.
  bool sees(int i, int key) const {
    return positions_[i] >= key + kTileKeys && first_seen(i, key) < kTileKeys;
  }
  // The first virtual key of the tile starting at `key` that lies in node i's window.
  int first_seen(int i, int key) const {
    const int first = tree_.p.window > 0 ? positions_[i] - tree_.p.window + 1 - key : 0;
    return max_int(0, min_int(kTileKeys, first));
  }
  bool any_sees(int key) const {
    bool any = false;
    for (int i = 0; i < num_nodes_; ++i) any |= sees(i, key);
    return any;
  }

  // The union nodes whose depth lies in [first_depth, last_depth).
  struct Range {
    const int* begin_;
    const int* end_;
    const int* begin() const { return begin_; }
    const int* end() const { return end_; }
    int size() const { return static_cast<int>(end_ - begin_); }
  };
  Range nodes_of_depths(int first_depth, int last_depth) const {
    const int last = min_int(last_depth, max_depth_ + 1);
    if (last <= first_depth) return {union_, union_};
    return {union_ + depth_begin_[first_depth], union_ + depth_begin_[last]};
  }

  // Bit c: nodes[c] is on the path of node i; c < count <= 64.
  uint64_t path_mask(int i, const int* nodes, int first, int count) const {
    const uint32_t* words = tree_.ancestors(nodes_[i]);
    uint64_t mask = 0;
    for (int c = first; c < count; ++c) {
      mask |= uint64_t{words[nodes[c] / 32] >> nodes[c] % 32 & 1} << c;
    }
    return mask;
  }

 private:
  // A counting sort.
  void sort_union_by_depth() {
    const int num_words = (tree_.num_nodes + 31) / 32;
    for (int d = 0; d <= max_depth_ + 1; ++d) depth_begin_[d] = 0;
    const auto for_each = [&](auto&& f) {
      for (int word = 0; word < num_words; ++word) {
        uint32_t bits = 0;
        for (int i = 0; i < num_nodes_; ++i) bits |= tree_.ancestors(nodes_[i])[word];
        for (; bits != 0; bits &= bits - 1) f(word * 32 + __builtin_ctz(bits));
      }
    };
    for_each([&](int id) { ++depth_begin_[tree_.depth(id) + 1]; });
    for (int d = 0; d <= max_depth_; ++d) depth_begin_[d + 1] += depth_begin_[d];
    for_each([&](int id) { union_[depth_begin_[tree_.depth(id)]++] = id; });
    for (int d = max_depth_ + 1; d > 0; --d) depth_begin_[d] = depth_begin_[d - 1];
    depth_begin_[0] = 0;
  }

  const RequestTree& tree_;
  const int num_nodes_;
  int nodes_[kMaxTileNodes], positions_[kMaxTileNodes];
  int max_depth_ = 0;
  int* const union_;        // by depth
  int* const depth_begin_;  // [max depth + 2], into union_
};

}  // namespace treeattn::cpu::TREEATTN_ISA
