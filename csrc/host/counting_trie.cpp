// SPDX-License-Identifier: Apache-2.0
#include "host/counting_trie.h"

#include <algorithm>
#include <utility>

namespace treeattn::host {

CountingTrie::CountingTrie(int max_depth) : max_depth_(max_depth), nodes_(1) {}

void CountingTrie::extend(Windows& windows, std::int32_t token) {
  if (std::ssize(windows) < max_depth_) windows.push_back(kNone);
  int parent = kRoot;
  int suffix = kRoot;
  for (int& window : windows) {  // shortest first: each is the suffix of the next
    int node = child(parent, token);
    if (node == kNone) node = add_child(parent, token, suffix);
    ++nodes_[node].count;
    parent = std::exchange(window, node);
    suffix = node;
  }
}

void CountingTrie::remove(std::span<const std::int32_t> tokens) {
  std::vector<std::pair<int, int>> gone;  // (parent, node) whose windows no longer occur
  Windows windows;
  for (const std::int32_t token : tokens) {
    if (std::ssize(windows) < max_depth_) windows.push_back(kNone);
    int parent = kRoot;
    for (int& window : windows) {
      const int node = child(parent, token);
      if (--nodes_[node].count == 0) gone.emplace_back(parent, node);
      parent = std::exchange(window, node);
    }
  }
  for (const auto& [parent, node] : gone) {
    if (parent == kRoot || nodes_[parent].count > 0) drop_child(parent, node);
  }
  for (const auto& [parent, node] : gone) recycle(node);
}

void CountingTrie::append_children(int node, std::vector<Child>& out) const {
  const int link = nodes_[node].link;
  if (link == kNone) return;
  if (!is_fan(link)) {
    out.push_back({.token = nodes_[link].token, .count = nodes_[link].count, .node = link});
    return;
  }
  for (const Edge& edge : fans_[fan_link(link)].edges) {
    out.push_back({.token = edge.token, .count = nodes_[edge.node].count, .node = edge.node});
  }
}

int CountingTrie::child(int node, std::int32_t token) const {
  const int link = nodes_[node].link;
  if (link == kNone) return kNone;
  if (!is_fan(link)) return nodes_[link].token == token ? link : kNone;
  const Fan& fan = fans_[fan_link(link)];
  if (std::ssize(fan.edges) > kScanned) {
    const auto it = fan.index_of.find(token);
    return it == fan.index_of.end() ? kNone : fan.edges[it->second].node;
  }
  const auto it = std::ranges::find(fan.edges, token, &Edge::token);
  return it == fan.edges.end() ? kNone : it->node;
}

int CountingTrie::add_child(int node, std::int32_t token, int suffix) {
  int added = static_cast<int>(nodes_.size());
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    added = unused_.back();
    unused_.pop_back();
  }
  nodes_[added] = Node{.token = token, .count = 0, .suffix = suffix, .link = kNone};

  int& link = nodes_[node].link;
  if (link == kNone) {
    link = added;
    return added;
  }
  if (!is_fan(link)) {
    const Edge only{.token = nodes_[link].token, .node = link};
    int fan = static_cast<int>(fans_.size());
    if (unused_fans_.empty()) {
      fans_.emplace_back();
    } else {
      fan = unused_fans_.back();
      unused_fans_.pop_back();
    }
    fans_[fan].edges.push_back(only);
    link = fan_link(fan);
  }
  Fan& fan = fans_[fan_link(link)];
  fan.edges.push_back({.token = token, .node = added});
  const int last = static_cast<int>(fan.edges.size()) - 1;
  if (last == kScanned) {
    for (int i = 0; i <= last; ++i) fan.index_of[fan.edges[i].token] = i;
  } else if (last > kScanned) {
    fan.index_of[token] = last;
  }
  return added;
}

// A fan stays a fan down to its last child.
void CountingTrie::drop_child(int node, int child) {
  int& link = nodes_[node].link;
  if (!is_fan(link)) {
    link = kNone;
    return;
  }
  Fan& fan = fans_[fan_link(link)];
  const auto it = std::ranges::find(fan.edges, child, &Edge::node);
  const Edge last = fan.edges.back();
  if (!fan.index_of.empty()) {
    fan.index_of[last.token] = static_cast<int>(it - fan.edges.begin());
    fan.index_of.erase(it->token);
  }
  *it = last;
  fan.edges.pop_back();
  if (std::ssize(fan.edges) <= kScanned) fan.index_of.clear();
  if (!fan.edges.empty()) return;
  unused_fans_.push_back(fan_link(link));
  link = kNone;
}

void CountingTrie::recycle(int node) {
  const int link = nodes_[node].link;
  if (is_fan(link)) {
    fans_[fan_link(link)] = Fan{};
    unused_fans_.push_back(fan_link(link));
  }
  nodes_[node] = Node{};
  unused_.push_back(node);
}

}  // namespace treeattn::host
