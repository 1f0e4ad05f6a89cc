// SPDX-License-Identifier: Apache-2.0
#include "cpu/accept_path.h"

#include <functional>
#include <vector>

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"
#include "cpu/accept_counts.h"
#include "cpu/isa.h"

namespace treeattn::bindings {

void run_on_cpu(const AcceptPathCall& call) {
  AcceptPathParams p = call.params;
  cpu::check_accept_path(p);
  const std::vector<int32_t> columns = cpu::draft_columns(p);
  p.drafts.columns = columns.empty() ? nullptr : columns.data();
  cpu::active_isa();  // throws here, not on a worker thread
  const int num_threads = static_cast<int>(torch::stable::get_num_threads());
  if (cpu::pays_to_read_ahead(p, num_threads)) {
    cpu::accept_path_ahead(p, [num_threads](const std::function<void()>& worker) {
      parallel_for(num_threads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) worker();
      });
    });
  } else {
    parallel_for(p.num_requests, 1, [&p](int64_t begin, int64_t end) {
      cpu::accept_path(p, static_cast<int>(begin), static_cast<int>(end));
    });
  }
  if (p.counts.data != nullptr) cpu::count_accepted(p);
}

}  // namespace treeattn::bindings
