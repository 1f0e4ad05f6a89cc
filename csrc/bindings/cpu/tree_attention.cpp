// SPDX-License-Identifier: Apache-2.0
#include "cpu/tree_attention.h"

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"
#include "cpu/scratch.h"

namespace treeattn::bindings {
namespace {

thread_local cpu::Scratch kept_scratch, kept_states;

}  // namespace

void run_on_cpu(const TreeAttentionCall& call) {
  const TreeAttentionParams& p = call.params;
  cpu::check_tree_attention(p);
  cpu::AttentionSchedule schedule(p, torch::stable::get_num_threads());
  float* const states = kept_states.floats(schedule.states_size());
  parallel_items(schedule.num_units(), [&](const auto& next) {
    float* const scratch = kept_scratch.floats(schedule.scratch_size());
    for (int64_t unit = next(); unit < schedule.num_units(); unit = next()) {
      schedule.run(unit, scratch, states);
    }
  });
  cpu::clear_unowned_rows(p);
}

}  // namespace treeattn::bindings
