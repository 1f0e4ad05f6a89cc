// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "cpu/tree_attention_kernel.h"

namespace treeattn::cpu {

// What the plan could not know: that the blocks and slots exist in this pool. The plan aliases the
// caller's lengths and offsets, so what bounds a read is checked again. Throws
// std::invalid_argument at the first breach; writes nothing.
void check_tree_attention(const TreeAttentionParams& p);

// The work of one call, cut into units that may run in any order on any thread:
//   const AttentionSchedule schedule(params, num_threads);
//   on each thread, with its own scratch: run(unit, scratch, states) for some of the units
// Units are whole panels, and for the panels that would leave threads idle at the end, their single
// streams, which leave their states behind; whoever finishes the last stream of a panel merges
// them.
class AttentionSchedule {
 public:
  AttentionSchedule(const TreeAttentionParams& p, int num_threads);

  int64_t num_units() const { return static_cast<int64_t>(units_.size()); }
  int64_t scratch_size() const { return layout_.scratch_size; }  // floats, per thread
  int64_t states_size() const { return num_split_ * kNumStreams * layout_.state_size; }

  // Each unit once.
  void run(int64_t unit, float* scratch, float* states);

 private:
  struct Unit {
    AttentionPanel panel;
    int stream;  // -1: all
    int split;   // index of the split panel
  };

  const TreeAttentionParams& p_;
  AttentionLayout layout_{};
  AttentionKernel kernel_;
  std::vector<Unit> units_;
  int64_t num_split_ = 0;
  std::unique_ptr<std::atomic<int>[]> streams_left_;  // per split panel
};

// Zeroes the rows that no live request owns: their out is 0 and their lse -inf.
void clear_unowned_rows(const TreeAttentionParams& p);

}  // namespace treeattn::cpu
