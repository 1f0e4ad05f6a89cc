// SPDX-License-Identifier: Apache-2.0
// BlockPool::check: every count and list, recomputed from the sequences.
#include <sstream>
#include <stdexcept>

#include "host/block_pool.h"

namespace treeattn::host {
namespace {

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream message;
  message << "BlockPool is broken: ";
  (message << ... << parts);
  throw std::logic_error(message.str());
}

}  // namespace

void BlockPool::check() const {
  std::vector<int> refs(blocks_.size(), 0);
  std::vector<int> index_in_table(blocks_.size(), -1);
  std::vector<int> sequence_nodes;
  for (const auto& [seq, s] : sequences_) {
    check_sequence(seq, s, refs, index_in_table);
    sequence_nodes.push_back(s.prefix);
  }
  for (const auto& [seq, s] : sequences_) {
    if (s.num_reserved == 0) continue;
    for (std::int64_t i = s.context_len / block_size_; i < std::ssize(s.table); ++i) {
      require(refs[s.table[i]] == 1, "sequence ", seq, " has reserved block ", s.table[i],
              ", which is shared");
    }
  }
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    const Block& b = blocks_[block];
    require(b.refs == refs[block], "block ", block, " counts ", b.refs, " references, but ",
            refs[block], " tables list it");
    require(b.prefix == PrefixIndex::kNone || index_.block(b.prefix) == static_cast<int>(block),
            "block ", block, " caches prefix ", b.prefix, ", which names another block");
  }
  check_free_lists();
  index_.check(sequence_nodes);
}

void BlockPool::check_sequence(std::int64_t seq, const Sequence& s, std::vector<int>& refs,
                               std::vector<int>& index_in_table) const {
  require(seq >= 0 && s.context_len >= 0 && s.num_reserved >= 0, "sequence ", seq,
          " has a negative id or length");
  require(std::ssize(s.table) == blocks_for(s.context_len + s.num_reserved), "sequence ", seq,
          " lists ", s.table.size(), " blocks for ", s.context_len, " committed and ",
          s.num_reserved, " reserved tokens");
  for (int i = 0; i < std::ssize(s.table); ++i) {
    const int block = s.table[i];
    require(block >= 0 && block < num_blocks(), "sequence ", seq, " lists block ", block);
    // Blocks are shared through a common prefix only, so all owners list them at one place; this
    // also finds a block that one table lists twice.
    require(index_in_table[block] == -1 || index_in_table[block] == i, "block ", block,
            " is listed at ", i, " by sequence ", seq, " and elsewhere at ", index_in_table[block]);
    index_in_table[block] = i;
    ++refs[block];
  }
  if (!prefix_cache_) return;
  require(std::ssize(s.tail) == s.context_len % block_size_, "sequence ", seq, " keeps ",
          s.tail.size(), " tail tokens of ", s.context_len);
  require(index_.depth(s.prefix) == s.context_len / block_size_, "sequence ", seq, " of ",
          s.context_len, " tokens ends at a prefix of ", index_.depth(s.prefix), " blocks");
}

void BlockPool::check_free_lists() const {
  std::vector<bool> is_free(blocks_.size(), false);
  const auto visit = [&](int block, bool cached) {
    require(!is_free[block], "block ", block, " is free twice");
    require(blocks_[block].refs == 0, "block ", block, " is free but owned");
    require((blocks_[block].prefix != PrefixIndex::kNone) == cached, "block ", block,
            " is in the wrong free list");
    is_free[block] = true;
  };
  for (const int block : empty_) visit(block, false);
  for (const int block : lru_) visit(block, true);
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    require(is_free[block] || blocks_[block].refs > 0, "block ", block,
            " is neither owned nor free");
  }
}

}  // namespace treeattn::host
