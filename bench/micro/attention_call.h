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
      : params_(params), threads_(threads) {
    const cpu::AttentionSchedule schedule(params, threads);
    for (int i = 0; i < threads; ++i) {
      scratch_.emplace_back(DType::kFloat32, schedule.scratch_size());
    }
    states_ = Elements(DType::kFloat32, schedule.states_size());
  }

  // What the op does: cut the work into units, then let the threads take them from a common
  // counter.
  void run(Workers& workers) {
    cpu::AttentionSchedule schedule(params_, threads_);
    Items items(schedule.num_units());
    workers.run(threads_, [&](int thread) {
      for (int64_t i = items.next(); i < schedule.num_units(); i = items.next()) {
        schedule.run(i, floats(scratch_[thread]), floats(states_));
      }
    });
  }

 private:
  static float* floats(Elements& elements) { return static_cast<float*>(elements.data()); }

  const TreeAttentionParams& params_;
  int threads_;
  std::vector<Elements> scratch_;  // one of each thread
  Elements states_{DType::kFloat32, 0};
};

}  // namespace treeattn::micro
