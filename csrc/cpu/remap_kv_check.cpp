// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "cpu/node_indptr.h"
#include "cpu/remap_kv.h"
#include "cpu/remap_request.h"
#include "treeattn/check.h"

namespace treeattn::cpu {
namespace {

void check_path(const RemapKvParams& p, const RemapRequest& r, int request) {
  const int accepted = p.num_accepted[request];
  TREEATTN_CHECK(accepted >= 0 && accepted < p.path_width, "remap_kv: num_accepted[", request,
                 "] must be in [0, ", p.path_width, "), got ", accepted);
  int previous = -1;
  for (int k = 0; k < r.num_rows; ++k) {
    TREEATTN_CHECK(r.path[k] > previous && r.path[k] < r.num_nodes, "remap_kv: path[", request,
                   ", ", k, "] must be an ascending node id below ", r.num_nodes, ", got ",
                   r.path[k]);
    previous = r.path[k];
  }
}

void check_slots(const RemapKvParams& p, const RemapRequest& r, int request) {
  const int64_t num_slots = int64_t{p.num_blocks} * p.block_size;
  for (int i = 0; i < r.num_nodes; ++i) {
    TREEATTN_CHECK(r.slots[i] >= 0 && r.slots[i] < num_slots,
                   "remap_kv: slot_mapping must be in [0, ", num_slots, "), node ", i,
                   " of request ", request, " got ", r.slots[i]);
  }
}

// The last logical slot that this request's longest path could take.
int64_t last_slot(const RemapKvParams& p, const RemapRequest& r) {
  return r.context_len + std::min(p.path_width, r.num_nodes) - 1;
}

void check_table(const RemapKvParams& p, const RemapRequest& r, int request) {
  TREEATTN_CHECK(r.context_len >= 0, "remap_kv: context_lens[", request,
                 "] must not be negative, got ", r.context_len);
  const int64_t last = last_slot(p, r) / p.block_size;
  TREEATTN_CHECK(last < p.max_blocks, "remap_kv: block_table of request ", request, " must list ",
                 last + 1, " blocks for context_len ", r.context_len, " and a path of ",
                 last_slot(p, r) - r.context_len + 1, ", got ", p.max_blocks);
  for (int64_t j = r.context_len / p.block_size; j <= last; ++j) {
    TREEATTN_CHECK(r.table[j] >= 0 && r.table[j] < p.num_blocks, "remap_kv: block_table[", request,
                   ", ", j, "] must be in [0, ", p.num_blocks, "), got ", r.table[j]);
  }
}

// Blocks that hold rows at or after some request's context. Each belongs to one table entry.
class PrivateBlocks {
 public:
  explicit PrivateBlocks(const RemapKvParams& p) : p_(p), taken_(p.num_blocks) {}

  void take(const RemapRequest& r, int request) {
    int64_t next = r.context_len / p_.block_size;
    for (; next <= last_slot(p_, r) / p_.block_size; ++next) take(r.table[next], request, next);
    // Entries past the longest path count where a node lies in them.
    for (int i = 0; i < r.num_nodes; ++i) {
      const int64_t entry = (r.context_len + i) / p_.block_size;
      if (entry < next || !r.is_default(i)) continue;
      take(r.table[entry], request, entry);
      next = entry + 1;
    }
  }

  void check_committed(const RemapRequest& r, int request) const {
    const int64_t committed = std::min<int64_t>(r.context_len / p_.block_size, p_.max_blocks);
    for (int64_t j = 0; j < committed; ++j) {
      const bool in_pool = r.table[j] >= 0 && r.table[j] < p_.num_blocks;
      TREEATTN_CHECK(!in_pool || !taken_[r.table[j]],
                     "remap_kv: block_table must list a block at or after context_len only once, "
                     "block ",
                     r.table[j], " is also committed at [", request, ", ", j, "]");
    }
  }

 private:
  void take(int block, int request, int64_t entry) {
    TREEATTN_CHECK(!taken_[block],
                   "remap_kv: block_table must list a block at or after context_len only once, "
                   "block ",
                   block, " is listed again at [", request, ", ", entry, "]");
    taken_[block] = true;
  }

  const RemapKvParams& p_;
  std::vector<bool> taken_;
};

}  // namespace

void check_remap_kv(const RemapKvParams& p) {
  check_node_indptr("remap_kv", p.node_indptr, p.num_requests, p.num_nodes);
  PrivateBlocks blocks(p);
  for (int b = 0; b < p.num_requests; ++b) {
    const RemapRequest r = remap_request(p, b);
    if (!r.moves) continue;
    check_path(p, r, b);
    check_slots(p, r, b);
    check_table(p, r, b);
    blocks.take(r, b);
  }
  for (int b = 0; b < p.num_requests; ++b) {
    const RemapRequest r = remap_request(p, b);
    if (r.num_rows > 0) blocks.check_committed(r, b);
  }
}

}  // namespace treeattn::cpu
