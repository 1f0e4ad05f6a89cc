// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace treeattn::host {

// How often each window of up to `max_depth` consecutive tokens occurs in the streams added so far.
// A node is a window; its children are the windows that are one token longer at the end, its suffix
// is the window without its first token. A node lives while its window occurs.
class CountingTrie {
 public:
  static constexpr int kRoot = 0;  // the empty window
  static constexpr int kNone = -1;

  struct Child {
    std::int32_t token;
    std::int32_t count;
    int node;
  };
  // The windows at the end of a stream: element l is the node of its last l + 1 tokens.
  using Windows = std::vector<int>;

  explicit CountingTrie(int max_depth);

  // Appends one token to the stream that ends in `windows`.
  void extend(Windows& windows, std::int32_t token);

  // Takes back a whole stream, all of whose tokens were added by extend.
  void remove(std::span<const std::int32_t> tokens);

  int suffix(int node) const { return nodes_[node].suffix; }
  bool has_children(int node) const { return nodes_[node].link != kNone; }
  void append_children(int node, std::vector<Child>& out) const;
  std::int64_t num_windows() const {
    return static_cast<std::int64_t>(nodes_.size() - unused_.size()) - 1;
  }

 private:
  struct Node {
    std::int32_t token = 0;
    std::int32_t count = 0;
    int suffix = kRoot;
    int link = kNone;  // the only child, or fan_link(i), or kNone
  };
  struct Edge {
    std::int32_t token;
    int node;
  };
  // The children of a node that has had more than one. Beyond kScanned edges a map finds them.
  struct Fan {
    std::vector<Edge> edges;
    std::unordered_map<std::int32_t, int> index_of;  // token -> index in edges
  };
  static constexpr int kScanned = 16;  // 128 bytes of edges: two cache lines

  static constexpr bool is_fan(int link) { return link < kNone; }
  static constexpr int fan_link(int fan) { return -2 - fan; }  // its own inverse

  int child(int node, std::int32_t token) const;
  int add_child(int node, std::int32_t token, int suffix);
  void drop_child(int node, int child);
  void recycle(int node);

  int max_depth_;
  std::vector<Node> nodes_;
  std::vector<Fan> fans_;
  std::vector<int> unused_;
  std::vector<int> unused_fans_;
};

}  // namespace treeattn::host
