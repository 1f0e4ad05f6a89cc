// SPDX-License-Identifier: Apache-2.0
#include "host/block_pool.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "host/errors.h"
#include "treeattn/check.h"

namespace treeattn::host {
namespace {

// Block ids and block sizes are int32 in device tables.
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

}  // namespace

BlockPool::BlockPool(std::int64_t num_blocks, std::int64_t block_size, bool prefix_cache)
    : block_size_(block_size), prefix_cache_(prefix_cache) {
  TREEATTN_CHECK(num_blocks >= 1 && num_blocks <= kMaxInt32,
                 "num_blocks must be in [1, 2^31), got ", num_blocks);
  TREEATTN_CHECK(block_size >= 1 && block_size <= kMaxInt32,
                 "block_size must be in [1, 2^31), got ", block_size);
  blocks_.resize(num_blocks);
  empty_.reserve(num_blocks);
  for (std::int64_t block = num_blocks - 1; block >= 0; --block) {
    empty_.push_back(static_cast<int>(block));
  }
}

std::int64_t BlockPool::create(std::int64_t seq, TokenSpan tokens) {
  check_new_sequence("create", "seq", seq);
  const std::vector<int> hits = cached_prefix(tokens);
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  const auto num_hits = static_cast<std::int64_t>(hits.size());
  const std::int64_t idle_hits =
      std::ranges::count_if(hits, [&](int node) { return blocks_[index_.block(node)].refs == 0; });
  check_room("create", seq, blocks_for(num_tokens) - num_hits, num_free() - idle_hits);

  Sequence& s = sequences_[seq];
  s.context_len = num_hits * block_size_;
  s.prefix = hits.empty() ? PrefixIndex::kRoot : hits.back();
  index_.retain(s.prefix);
  for (const int node : hits) {  // all hits before any new block: none of them may be evicted
    acquire(index_.block(node));
    s.table.push_back(index_.block(node));
  }
  while (std::ssize(s.table) < blocks_for(num_tokens)) s.table.push_back(take_free());
  append(s, tokens.subspan(s.context_len));
  return num_hits * block_size_;
}

std::vector<std::pair<int, int>> BlockPool::reserve(std::int64_t seq, std::int64_t num_nodes) {
  Sequence& s = find("reserve", seq);
  TREEATTN_CHECK(num_nodes >= 0, "num_nodes must be >= 0, got ", num_nodes, " for sequence ", seq);
  const std::int64_t first_written = s.context_len / block_size_;
  const bool copies_tail =
      num_nodes > 0 && s.context_len % block_size_ != 0 && blocks_[s.table[first_written]].refs > 1;
  const std::int64_t held = std::ssize(s.table);
  // Both terms stay below 2^62, see the constructor.
  const std::int64_t wanted =
      blocks_for(s.context_len + std::min(num_nodes, (num_blocks() + 1) * block_size_));
  check_room("reserve", seq, wanted - held + (copies_tail ? 1 : 0), num_free());

  truncate(s, wanted);
  while (std::ssize(s.table) < wanted) s.table.push_back(take_free());
  s.num_reserved = num_nodes;
  if (!copies_tail) return {};
  const int shared = s.table[first_written];
  s.table[first_written] = take_free();
  release(shared);
  return {{shared, s.table[first_written]}};
}

void BlockPool::commit(std::int64_t seq, TokenSpan tokens,
                       const std::optional<std::vector<std::int64_t>>& block_table) {
  Sequence& s = find("commit", seq);
  TREEATTN_CHECK(std::ssize(tokens) <= s.num_reserved,
                 "tokens must be no more than reserved: sequence ", seq, " has room for ",
                 s.num_reserved, ", got ", tokens.size());
  if (block_table) {
    check_permutation(seq, s, *block_table);
    std::ranges::transform(*block_table, s.table.begin(),
                           [](std::int64_t block) { return static_cast<int>(block); });
  }
  append(s, tokens);
  s.num_reserved = 0;
  truncate(s, blocks_for(s.context_len));
}

void BlockPool::fork(std::int64_t seq, std::int64_t new_seq) {
  find("fork", seq);
  check_new_sequence("fork", "new_seq", new_seq);
  Sequence& child = sequences_[new_seq];  // may move the map's buckets, never its elements
  Sequence& parent = sequences_.at(seq);
  parent.num_reserved = 0;
  truncate(parent, blocks_for(parent.context_len));
  child = parent;
  index_.retain(child.prefix);
  for (const int block : child.table) acquire(block);
}

void BlockPool::free(std::int64_t seq) {
  const auto it = sequences_.find(seq);
  if (it == sequences_.end()) {
    std::ostringstream message;
    message << "free: sequence " << seq << " is unknown or was freed before";
    throw UnknownSequence(message.str());
  }
  truncate(it->second, 0);
  index_.release(it->second.prefix);
  sequences_.erase(it);
}

const std::vector<int>& BlockPool::block_table(std::int64_t seq) const {
  return find("block_table", seq).table;
}

std::int64_t BlockPool::context_len(std::int64_t seq) const {
  return find("context_len", seq).context_len;
}

int BlockPool::ref_count(std::int64_t block) const {
  TREEATTN_CHECK(block >= 0 && block < num_blocks(), "block must be in [0, ", num_blocks(),
                 "), got ", block);
  return blocks_[block].refs;
}

std::int64_t BlockPool::blocks_for(std::int64_t num_tokens) const {
  return num_tokens / block_size_ + (num_tokens % block_size_ != 0 ? 1 : 0);
}

BlockPool::Sequence& BlockPool::find(const char* what, std::int64_t seq) {
  return const_cast<Sequence&>(std::as_const(*this).find(what, seq));
}

const BlockPool::Sequence& BlockPool::find(const char* what, std::int64_t seq) const {
  const auto it = sequences_.find(seq);
  if (it != sequences_.end()) return it->second;
  std::ostringstream message;
  message << what << ": sequence " << seq << " is unknown";
  throw UnknownSequence(message.str());
}

void BlockPool::check_new_sequence(const char* what, const char* argument, std::int64_t seq) const {
  TREEATTN_CHECK(seq >= 0, what, ": ", argument, " must be a non-negative sequence id, got ", seq);
  TREEATTN_CHECK(!sequences_.contains(seq), what, ": ", argument,
                 " must be a new sequence id, but sequence ", seq, " exists");
}

void BlockPool::check_room(const char* what, std::int64_t seq, std::int64_t needed,
                           std::int64_t available) const {
  if (needed <= available) return;
  std::ostringstream message;
  message << what << ": sequence " << seq << " needs " << needed << " more blocks of "
          << block_size_ << " tokens, but " << available << " of num_blocks = " << num_blocks()
          << " are free";
  throw OutOfBlocks(message.str());
}

void BlockPool::check_permutation(std::int64_t seq, const Sequence& s,
                                  const std::vector<std::int64_t>& row) const {
  TREEATTN_CHECK(row.size() == s.table.size(),
                 "block_table must be a permutation of the blocks of sequence ", seq, ": expected ",
                 s.table.size(), " entries, got ", row.size());
  for (std::int64_t i = 0; i < s.context_len / block_size_; ++i) {
    TREEATTN_CHECK(row[i] == s.table[i], "block_table must not move whole committed blocks: entry ",
                   i, " of sequence ", seq, " is block ", s.table[i], ", got ", row[i]);
  }
  std::vector<std::int64_t> ours(s.table.begin(), s.table.end());
  std::vector<std::int64_t> theirs = row;
  std::ranges::sort(ours);
  std::ranges::sort(theirs);
  const auto [our, their] = std::ranges::mismatch(ours, theirs);
  if (our == ours.end()) return;
  // The first difference of sorted lists: a block that is missing, or one that is foreign or twice.
  const std::int64_t block = std::min(*our, *their);
  fail("block_table must be a permutation of the blocks of sequence ", seq, ": block ", block,
       " is listed ", std::ranges::count(theirs, block), " times, expected ",
       std::ranges::count(ours, block));
}

// The prefix nodes of the leading blocks of `tokens` that are cached. The last token is never
// covered: its row of logits has to be computed.
std::vector<int> BlockPool::cached_prefix(TokenSpan tokens) const {
  std::vector<int> nodes;
  if (!prefix_cache_ || tokens.empty()) return nodes;
  const std::int64_t limit = (std::ssize(tokens) - 1) / block_size_;
  int node = PrefixIndex::kRoot;
  while (std::ssize(nodes) < limit) {
    node = index_.find(node, tokens.subspan(std::ssize(nodes) * block_size_, block_size_));
    if (node == PrefixIndex::kNone || index_.block(node) == PrefixIndex::kNone) break;
    nodes.push_back(node);
  }
  return nodes;
}

// A free block with one reference. The caller has checked that there is one.
int BlockPool::take_free() {
  int block = 0;
  if (!empty_.empty()) {
    block = empty_.back();
    empty_.pop_back();
  } else {
    block = lru_.front();
    lru_.pop_front();
    index_.clear_block(blocks_[block].prefix);
    blocks_[block].prefix = PrefixIndex::kNone;
  }
  blocks_[block].refs = 1;
  return block;
}

void BlockPool::acquire(int block) {
  Block& b = blocks_[block];
  if (b.refs++ == 0) lru_.erase(b.lru);
}

void BlockPool::release(int block) {
  Block& b = blocks_[block];
  if (--b.refs > 0) return;
  if (b.prefix == PrefixIndex::kNone) {
    empty_.push_back(block);
  } else {
    b.lru = lru_.insert(lru_.end(), block);
  }
}

// Releases the last block first: of a cached prefix the end is evicted before the beginning,
// without which it could not be found.
void BlockPool::truncate(Sequence& s, std::int64_t num_blocks) {
  while (std::ssize(s.table) > num_blocks) {
    release(s.table.back());
    s.table.pop_back();
  }
}

// Commits tokens for which the table has room, and caches the blocks that they fill.
void BlockPool::append(Sequence& s, TokenSpan tokens) {
  std::int64_t filled = s.context_len / block_size_;
  s.context_len += std::ssize(tokens);
  if (!prefix_cache_) return;
  s.tail.insert(s.tail.end(), tokens.begin(), tokens.end());
  TokenSpan rest = s.tail;
  for (; std::ssize(rest) >= block_size_; rest = rest.subspan(block_size_), ++filled) {
    s.prefix = index_.enter(s.prefix, rest.first(block_size_));
    if (index_.block(s.prefix) != PrefixIndex::kNone) continue;  // an equal block came first
    index_.set_block(s.prefix, s.table[filled]);
    blocks_[s.table[filled]].prefix = s.prefix;
  }
  s.tail.erase(s.tail.begin(), s.tail.end() - std::ssize(rest));
}

}  // namespace treeattn::host
