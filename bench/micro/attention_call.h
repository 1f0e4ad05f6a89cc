// SPDX-License-Identifier: Apache-2.0
// The one place that knows how tree_attention is called on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/tree_attention.h"
#include "micro/common/elements.h"
#include "micro/common/workers.h"

namespace treeattn::micro {

// The kernel of the active instruction set, ready to run again and again on the same params.
class AttentionCall {
 public:
  AttentionCall(const TreeAttentionParams& params, int threads)
      : params_(params),
        scratch_(cpu::attention_scratch(params)),
        attend_tile_(cpu::attend_tile_kernel()) {
    for (int i = 0; i < threads; ++i) memory_.emplace_back(DType::kFloat32, scratch_.size);
  }

  // What the op does: list the work, then let the threads take it from a common counter.
  void run(Workers& workers) {
    const std::vector<cpu::AttentionTile> tiles = cpu::attention_tiles(params_);
    const auto num_tiles = static_cast<int64_t>(tiles.size());
    Items items(num_tiles);
    workers.run(static_cast<int>(memory_.size()), [&](int thread) {
      auto* const scratch = static_cast<float*>(memory_[thread].data());
      for (int64_t i = items.next(); i < num_tiles; i = items.next()) {
        attend_tile_(params_, scratch_, tiles[i], scratch);
      }
    });
  }

 private:
  const TreeAttentionParams& params_;
  cpu::AttentionScratch scratch_;
  cpu::AttendTile attend_tile_;
  std::vector<Elements> memory_;  // one of each thread
};

}  // namespace treeattn::micro
