// SPDX-License-Identifier: Apache-2.0
#include "cpu/remap_kv.h"

#include <algorithm>

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"

namespace treeattn::bindings {
namespace {

constexpr int64_t kBytesPerTask = 256 * 1024;

int64_t bytes_per_row(const std::vector<RemapPlane>& planes) {
  int64_t bytes = 0;
  for (const RemapPlane& plane : planes) bytes += int64_t{plane.num_heads} * plane.head_bytes;
  return bytes;
}

}  // namespace

void run_on_cpu(const RemapKvCall& call) {
  const RemapKvParams& p = call.params;
  cpu::check_remap_kv(p);
  const cpu::RemapMoves moves = cpu::plan_moves(p);
  const int64_t items = p.num_planes * moves.num_groups();
  const int64_t bytes = bytes_per_row(call.planes) * static_cast<int64_t>(moves.rows.size());
  if (bytes == 0) return;
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask * items / bytes);
  parallel_for(items, grain,
               [&](int64_t begin, int64_t end) { cpu::move_rows(p, moves, begin, end); });
}

}  // namespace treeattn::bindings
