// SPDX-License-Identifier: Apache-2.0
#include "host/suffix_trie.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <sstream>
#include <tuple>
#include <utility>

#include "host/errors.h"
#include "treeattn/check.h"

namespace treeattn::host {
namespace {

constexpr std::int64_t kMaxToken = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxDepth = 1024;  // every token costs max_depth counts

// A node of the draft, and the window that predicts what comes below it.
struct Chosen {
  std::int32_t token;
  std::int32_t parent;
  double log_prob;
  int window;
  std::int64_t window_len;
};

// The next child to try below one chosen node; its later siblings wait behind it.
struct Candidate {
  double log_prob;
  std::int32_t token;
  std::int32_t parent;
  std::size_t at;   // index in Expansion::children_
  std::size_t end;  // past its last sibling

  bool operator<(const Candidate& other) const {  // less urgent
    return std::tuple(-log_prob, token, parent) >
           std::tuple(-other.log_prob, other.token, other.parent);
  }
};

// Best-first choice of the likeliest paths.
class Expansion {
 public:
  Expansion(const CountingTrie& trie, std::int64_t num_nodes, std::int64_t min_match,
            double min_prob)
      : trie_(trie),
        num_nodes_(num_nodes),
        min_match_(min_match),
        min_log_prob_(std::log(min_prob)) {}

  std::vector<Chosen> run(const Chosen& root) {
    choose(root);
    while (std::ssize(chosen_) < num_nodes_ && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const Ranked child = children_[best.at];
      if (best.at + 1 < best.end) push(best.parent, best.at + 1, best.end);
      choose({.token = best.token,
              .parent = best.parent,
              .log_prob = best.log_prob,
              .window = child.node,
              .window_len = context_lens_[best.parent] + 1});
    }
    return std::move(chosen_);
  }

 private:
  struct Ranked {
    std::int32_t token;
    int node;
    double log_prob;  // of the path
  };

  void choose(const Chosen& node) {
    const auto id = static_cast<std::int32_t>(chosen_.size());
    chosen_.push_back(node);
    int context = node.window;
    std::int64_t context_len = node.window_len;
    for (; context_len >= min_match_ && !trie_.has_children(context); --context_len) {
      context = trie_.suffix(context);
    }
    context_lens_.push_back(context_len);
    const std::int64_t room = num_nodes_ - std::ssize(chosen_);
    if (context_len < min_match_ || room == 0) return;

    continuations_.clear();
    trie_.append_children(context, continuations_);
    std::int64_t total = 0;
    for (const auto& child : continuations_) total += child.count;
    const auto kept = std::min<std::int64_t>(room, std::ssize(continuations_));
    std::ranges::partial_sort(continuations_, continuations_.begin() + kept,
                              [](const auto& a, const auto& b) {
                                return a.count != b.count ? a.count > b.count : a.token < b.token;
                              });
    const std::size_t begin = children_.size();
    for (std::int64_t i = 0; i < kept; ++i) {
      const auto& child = continuations_[i];
      const double log_prob =
          node.log_prob + std::log(static_cast<double>(child.count) / static_cast<double>(total));
      if (log_prob < min_log_prob_) break;
      children_.push_back({.token = child.token, .node = child.node, .log_prob = log_prob});
    }
    if (children_.size() > begin) push(id, begin, children_.size());
  }

  void push(std::int32_t parent, std::size_t at, std::size_t end) {
    queue_.push({.log_prob = children_[at].log_prob,
                 .token = children_[at].token,
                 .parent = parent,
                 .at = at,
                 .end = end});
  }

  const CountingTrie& trie_;
  const std::int64_t num_nodes_;
  const std::int64_t min_match_;
  const double min_log_prob_;
  std::vector<Chosen> chosen_;
  std::vector<std::int64_t> context_lens_;  // of each chosen node
  std::vector<Ranked> children_;
  std::vector<CountingTrie::Child> continuations_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

SuffixTrie::SuffixTrie(std::int64_t max_depth, bool shared) : max_depth_(max_depth) {
  TREEATTN_CHECK(max_depth >= 2 && max_depth <= kMaxDepth, "max_depth must be in [2, ", kMaxDepth,
                 "], got ", max_depth);
  if (shared) common_ = std::make_unique<CountingTrie>(static_cast<int>(max_depth));
}

void SuffixTrie::extend(std::int64_t stream, std::span<const std::int64_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    TREEATTN_CHECK(tokens[i] >= 0 && tokens[i] <= kMaxToken, "tokens[", i,
                   "] must be in [0, 2^31), got ", tokens[i]);
  }
  Stream& s = streams_[stream];
  if (!shared() && s.own == nullptr) {
    s.own = std::make_unique<CountingTrie>(static_cast<int>(max_depth_));
  }
  CountingTrie& trie = shared() ? *common_ : *s.own;
  for (const std::int64_t token : tokens) {
    s.tokens.push_back(static_cast<std::int32_t>(token));
    trie.extend(s.windows, s.tokens.back());
  }
}

void SuffixTrie::forget(std::int64_t stream) {
  const Stream& s = find("forget", stream);
  if (shared()) common_->remove(s.tokens);
  streams_.erase(stream);
}

Draft SuffixTrie::propose(std::int64_t stream, std::int64_t num_nodes, std::int64_t min_match,
                          double min_prob) const {
  const Stream& s = find("propose", stream);
  TREEATTN_CHECK(!s.tokens.empty(), "propose: stream ", stream, " has no token yet, so no root");
  TREEATTN_CHECK(num_nodes >= 1 && num_nodes <= kMaxToken,
                 "num_nodes must be in [1, 2^31) (the root counts), got ", num_nodes);
  TREEATTN_CHECK(min_match >= 1, "min_match must be >= 1, got ", min_match);
  TREEATTN_CHECK(min_prob >= 0 && min_prob <= 1, "min_prob must be in [0, 1], got ", min_prob);
  Expansion expansion(shared() ? *common_ : *s.own, num_nodes, min_match, min_prob);
  return depth_first(expansion.run({.token = s.tokens.back(),
                                    .parent = -1,
                                    .log_prob = 0.0,
                                    .window = s.windows.back(),
                                    .window_len = std::ssize(s.windows)}));
}

std::int64_t SuffixTrie::num_windows() const {
  if (shared()) return common_->num_windows();
  std::int64_t sum = 0;
  for (const auto& [stream, s] : streams_) sum += s.own->num_windows();
  return sum;
}

const SuffixTrie::Stream& SuffixTrie::find(const char* what, std::int64_t stream) const {
  const auto it = streams_.find(stream);
  if (it != streams_.end()) return it->second;
  std::ostringstream message;
  message << what << ": stream " << stream << " is unknown";
  throw UnknownSequence(message.str());
}

}  // namespace treeattn::host
