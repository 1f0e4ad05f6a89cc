// SPDX-License-Identifier: Apache-2.0
#include "cpu/plan_tree.h"

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"

namespace treeattn::bindings {

void run_on_cpu(const PlanTreeCall& call) {
  const PlanTreeParams& p = call.params;
  constexpr int64_t kRequestsPerTask = 64;
  cpu::check_plan_tree(p);
  parallel_for(p.num_requests, kRequestsPerTask, [&p](int64_t begin, int64_t end) {
    cpu::plan_tree(p, static_cast<int>(begin), static_cast<int>(end));
  });
  cpu::clear_unplanned_rows(p);
}

}  // namespace treeattn::bindings
