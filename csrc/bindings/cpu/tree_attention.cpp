// SPDX-License-Identifier: Apache-2.0
#include "cpu/tree_attention.h"

#include <memory>
#include <new>

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"

namespace treeattn::bindings {
namespace {

// Floats that start on a cache line, so that no vector straddles two. A thread keeps them from call
// to call: fresh pages would be zeroed and mapped under the kernel, call after call.
class KeptFloats {
 public:
  // At least `count`, of any content.
  float* get(int64_t count) {
    if (count > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<float*>(::operator new(sizeof(float) * count, kCacheLine)));
      size_ = count;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kCacheLine{64};
  struct Delete {
    void operator()(float* memory) const { ::operator delete(memory, kCacheLine); }
  };
  std::unique_ptr<float, Delete> memory_;
  int64_t size_ = 0;
};

thread_local KeptFloats kept_scratch, kept_states;

}  // namespace

void run_on_cpu(const TreeAttentionCall& call) {
  const TreeAttentionParams& p = call.params;
  cpu::check_tree_attention(p);
  cpu::AttentionSchedule schedule(p, torch::stable::get_num_threads());
  float* const states = kept_states.get(schedule.states_size());
  parallel_items(schedule.num_units(), [&](const auto& next) {
    float* const scratch = kept_scratch.get(schedule.scratch_size());
    for (int64_t unit = next(); unit < schedule.num_units(); unit = next()) {
      schedule.run(unit, scratch, states);
    }
  });
  cpu::clear_unowned_rows(p);
}

}  // namespace treeattn::bindings
