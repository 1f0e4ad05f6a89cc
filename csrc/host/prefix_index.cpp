// SPDX-License-Identifier: Apache-2.0
#include "host/prefix_index.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace treeattn::host {

PrefixIndex::PrefixIndex() : nodes_(1) { nodes_[kRoot].refs = 1; }

std::size_t PrefixIndex::Hash::operator()(const KeyView& key) const {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
  const auto mix = [](std::uint64_t hash) {
    hash *= kMultiplier;
    return hash ^ (hash >> 32);
  };
  std::uint64_t hash = mix(static_cast<std::uint64_t>(key.parent) + 1);
  for (const std::int64_t token : key.tokens) {
    hash = mix(hash ^ static_cast<std::uint64_t>(token));
  }
  return hash;
}

bool PrefixIndex::Equal::operator()(const KeyView& a, const KeyView& b) const {
  return a.parent == b.parent && std::ranges::equal(a.tokens, b.tokens);
}

int PrefixIndex::find(int parent, TokenSpan tokens) const {
  const auto it = children_.find(KeyView(parent, tokens));
  return it == children_.end() ? kNone : it->second;
}

int PrefixIndex::enter(int parent, TokenSpan tokens) {
  const int known = find(parent, tokens);
  if (known != kNone) {
    retain(known);
    release(parent);
    return known;
  }
  int node = static_cast<int>(nodes_.size());
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  const auto it =
      children_.emplace(Key{.parent = parent, .tokens = {tokens.begin(), tokens.end()}}, node)
          .first;
  // The caller's reference to the parent becomes the child's.
  nodes_[node] = Node{.key = &it->first, .refs = 1, .block = kNone};
  return node;
}

void PrefixIndex::release(int node) {
  while (--nodes_[node].refs == 0) {
    const Key* key = nodes_[node].key;
    const int parent = key->parent;
    children_.erase(children_.find(KeyView(*key)));
    nodes_[node] = Node{};
    unused_.push_back(node);
    node = parent;
  }
}

void PrefixIndex::set_block(int node, int block) {
  retain(node);
  nodes_[node].block = block;
}

void PrefixIndex::clear_block(int node) {
  nodes_[node].block = kNone;
  release(node);
}

int PrefixIndex::depth(int node) const {
  int depth = 0;
  for (; node != kRoot; node = nodes_[node].key->parent) ++depth;
  return depth;
}

void PrefixIndex::check(std::span<const int> sequence_nodes) const {
  std::vector<int> refs(nodes_.size(), 0);
  refs[kRoot] = 1;
  for (const int node : sequence_nodes) ++refs[node];
  for (const auto& [key, node] : children_) {
    ++refs[key.parent];
    if (nodes_[node].key != &key) {
      throw std::logic_error("prefix node " + std::to_string(node) + " has lost its key");
    }
  }
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].block != kNone) ++refs[node];
    if (nodes_[node].refs != refs[node]) {
      throw std::logic_error("prefix node " + std::to_string(node) + " counts " +
                             std::to_string(nodes_[node].refs) + " references, but " +
                             std::to_string(refs[node]) + " exist");
    }
  }
  if (nodes_.size() != 1 + children_.size() + unused_.size()) {
    throw std::logic_error("prefix nodes leak: " + std::to_string(nodes_.size()) + " made, " +
                           std::to_string(children_.size()) + " in use");
  }
}

}  // namespace treeattn::host
