// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace treeattn::host {

using TokenSpan = std::span<const std::int64_t>;

// The trie of full token blocks behind the prefix cache. A node stands for all tokens from the
// start of a sequence through one full block; it names the KV block that caches them, or none.
// Children are found by hash and confirmed token by token. A node lives while something refers to
// it: a sequence that ends there, a child, or the block that it names.
class PrefixIndex {
 public:
  static constexpr int kRoot = 0;  // the empty prefix; always there
  static constexpr int kNone = -1;

  PrefixIndex();

  // The child of `parent` for one block of tokens, or kNone.
  int find(int parent, TokenSpan tokens) const;

  // The child of `parent` for one block of tokens, made when absent. The caller's reference moves
  // from `parent` to the child.
  int enter(int parent, TokenSpan tokens);

  void retain(int node) { ++nodes_[node].refs; }
  void release(int node);

  int block(int node) const { return nodes_[node].block; }
  void set_block(int node, int block);
  void clear_block(int node);

  int depth(int node) const;

  // Recounts every reference, given the node of each sequence. Throws std::logic_error.
  void check(std::span<const int> sequence_nodes) const;

 private:
  struct Key {
    int parent;
    std::vector<std::int64_t> tokens;
  };
  struct KeyView {
    int parent;
    TokenSpan tokens;
    KeyView(int parent, TokenSpan tokens) : parent(parent), tokens(tokens) {}
    KeyView(const Key& key) : parent(key.parent), tokens(key.tokens) {}
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const KeyView& key) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const KeyView& a, const KeyView& b) const;
  };
  struct Node {
    const Key* key = nullptr;  // owned by children_; null for the root and for unused ids
    int refs = 0;
    int block = kNone;
  };

  std::vector<Node> nodes_;
  std::vector<int> unused_;
  std::unordered_map<Key, int, Hash, Equal> children_;
};

}  // namespace treeattn::host
