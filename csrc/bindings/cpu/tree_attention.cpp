// SPDX-License-Identifier: Apache-2.0
#include "cpu/tree_attention.h"

#include <new>

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"

namespace treeattn::bindings {
namespace {

// Uninitialised floats that start on a cache line, so that no vector straddles two.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t count)
      : memory_(static_cast<float*>(::operator new(sizeof(float) * count, kCacheLine))) {}
  ~AlignedFloats() { ::operator delete(memory_, kCacheLine); }
  AlignedFloats(const AlignedFloats&) = delete;
  AlignedFloats& operator=(const AlignedFloats&) = delete;
  float* get() const { return memory_; }

 private:
  static constexpr std::align_val_t kCacheLine{64};
  float* memory_;
};

}  // namespace

void run_on_cpu(const TreeAttentionCall& call) {
  const TreeAttentionParams& p = call.params;
  cpu::check_tree_attention(p);
  cpu::AttentionSchedule schedule(p, torch::stable::get_num_threads());
  const AlignedFloats states(schedule.states_size());
  parallel_items(schedule.num_units(), [&](const auto& next) {
    const AlignedFloats scratch(schedule.scratch_size());
    for (int64_t unit = next(); unit < schedule.num_units(); unit = next()) {
      schedule.run(unit, scratch.get(), states.get());
    }
  });
  cpu::clear_unowned_rows(p);
}

}  // namespace treeattn::bindings
