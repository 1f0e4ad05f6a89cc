// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/prefix_index.h"

namespace treeattn::host {

// Owns which KV blocks belong to which sequence: reference counts, copy-on-write of a shared tail
// block, and a prefix cache of full blocks of committed tokens. It holds block ids, never KV.
//
// A sequence's table covers its committed tokens and its reservation, nothing more. Blocks that
// hold room for a draft belong to one sequence only. A block without owner is free; when it is
// still cached it is handed out last, the one released longest ago first.
//
// Every function checks before it changes: an exception leaves the pool as it was.
class BlockPool {
 public:
  BlockPool(std::int64_t num_blocks, std::int64_t block_size, bool prefix_cache);

  // Returns the number of leading tokens whose KV is already in cached blocks: whole blocks, and
  // never all tokens.
  std::int64_t create(std::int64_t seq, TokenSpan tokens);

  // Room for exactly `num_nodes` tokens after the committed ones. Returns (src, dst) blocks to
  // copy before anything is written.
  std::vector<std::pair<int, int>> reserve(std::int64_t seq, std::int64_t num_nodes);

  // `block_table` is the row after remap_kv: a permutation of the sequence's blocks.
  void commit(std::int64_t seq, TokenSpan tokens,
              const std::optional<std::vector<std::int64_t>>& block_table);

  void fork(std::int64_t seq, std::int64_t new_seq);
  void free(std::int64_t seq);

  const std::vector<int>& block_table(std::int64_t seq) const;
  std::int64_t context_len(std::int64_t seq) const;
  int ref_count(std::int64_t block) const;

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t block_size() const { return block_size_; }
  std::int64_t num_free() const { return static_cast<std::int64_t>(empty_.size() + lru_.size()); }
  std::int64_t num_used() const { return num_blocks() - num_free(); }

  // Recomputes every count and list from the sequences. Throws std::logic_error on a breach.
  void check() const;

 private:
  struct Block {
    int refs = 0;                       // sequences whose table lists it
    int prefix = PrefixIndex::kNone;    // the prefix it caches
    std::list<int>::iterator lru = {};  // its place in lru_ while cached and without owner
  };
  struct Sequence {
    std::int64_t context_len = 0;
    std::int64_t num_reserved = 0;
    std::vector<int> table;
    int prefix = PrefixIndex::kRoot;  // all full blocks of committed tokens
    std::vector<std::int64_t> tail;   // committed tokens after the last full block
  };

  std::int64_t blocks_for(std::int64_t num_tokens) const;
  Sequence& find(const char* what, std::int64_t seq);
  const Sequence& find(const char* what, std::int64_t seq) const;
  void check_new_sequence(const char* what, const char* argument, std::int64_t seq) const;
  void check_room(const char* what, std::int64_t seq, std::int64_t needed,
                  std::int64_t available) const;
  void check_permutation(std::int64_t seq, const Sequence& s,
                         const std::vector<std::int64_t>& row) const;
  std::vector<int> cached_prefix(TokenSpan tokens) const;

  int take_free();
  void acquire(int block);
  void release(int block);
  void truncate(Sequence& s, std::int64_t num_blocks);
  void append(Sequence& s, TokenSpan tokens);

  void check_sequence(std::int64_t seq, const Sequence& s, std::vector<int>& refs,
                      std::vector<int>& index_in_table) const;
  void check_free_lists() const;

  std::int64_t block_size_;
  bool prefix_cache_;
  std::vector<Block> blocks_;
  std::vector<int> empty_;  // without owner and not cached; used from the back
  std::list<int> lru_;      // without owner, cached; released longest ago first
  PrefixIndex index_;
  std::unordered_map<std::int64_t, Sequence> sequences_;
};

}  // namespace treeattn::host
