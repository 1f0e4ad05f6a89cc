// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "host/counting_trie.h"
#include "host/draft.h"

namespace treeattn::host {

// Drafts by looking up how the end of a stream went on earlier: in the stream itself or, with
// `shared`, in all streams. The law after a context is that of its longest suffix that was ever
// continued: count of the continuation / count of all continuations.
class SuffixTrie {
 public:
  // Windows have up to `max_depth` tokens: a context of up to max_depth - 1, then its continuation.
  SuffixTrie(std::int64_t max_depth, bool shared);

  // Appends tokens to a stream, which begins with its first tokens.
  void extend(std::int64_t stream, std::span<const std::int64_t> tokens);

  // Removes a stream and its counts.
  void forget(std::int64_t stream);

  // The `num_nodes` likeliest paths (OPT-Tree, arXiv 2406.17276) below the last token of the
  // stream, which is the root and counts; fewer when the counts know no more. Contexts shorter than
  // `min_match` tokens and paths less likely than `min_prob` are left out. Equal paths: the lower
  // token, then the path whose parent is likelier.
  Draft propose(std::int64_t stream, std::int64_t num_nodes, std::int64_t min_match,
                double min_prob) const;

  std::int64_t max_depth() const { return max_depth_; }
  bool shared() const { return common_ != nullptr; }
  std::int64_t num_windows() const;

 private:
  struct Stream {
    std::vector<std::int32_t> tokens;
    CountingTrie::Windows windows;
    std::unique_ptr<CountingTrie> own;  // null when counts are shared
  };

  const Stream& find(const char* what, std::int64_t stream) const;

  std::int64_t max_depth_;
  std::unique_ptr<CountingTrie> common_;  // null when each stream has its own
  std::unordered_map<std::int64_t, Stream> streams_;
};

}  // namespace treeattn::host
