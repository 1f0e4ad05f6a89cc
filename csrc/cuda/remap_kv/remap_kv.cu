// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/remap_kv/kernel.cuh"
#include "cuda/remap_kv/remap_kv.h"

namespace treeattn::cuda {
namespace {

// The widest access to which every row of every head of a plane is aligned.
int column_width(const RemapPlane& plane) {
  const auto bits = reinterpret_cast<uintptr_t>(plane.data) |
                    static_cast<uintptr_t>(plane.stride_block) |
                    static_cast<uintptr_t>(plane.stride_row) |
                    static_cast<uintptr_t>(plane.num_heads > 1 ? plane.stride_head : 0) |
                    static_cast<uintptr_t>(plane.head_bytes);
  int width = 16;
  while (bits % static_cast<uintptr_t>(width) != 0) width /= 2;
  return width;
}

RemapRoles roles_of(const RemapKvParams& p, int64_t num_columns) {
  const auto ctas = [](int64_t items, int64_t each) { return (items + each - 1) / each; };
  // Entries of the tables that one CTA looks through soon enough, and that a checker takes.
  constexpr int64_t kFewEntries = 2048, kEntriesPerChecker = 512;
  RemapRoles roles{};
  roles.num_claimers = static_cast<int>(ctas(p.num_requests, kRemapWarps));
  roles.checkers_per_request =
      static_cast<int>(std::max<int64_t>(1, ctas(p.max_blocks, kEntriesPerChecker)));
  const bool one_planner =
      roles.num_claimers == 1 && int64_t{p.num_requests} * p.max_blocks <= kFewEntries;
  roles.num_checkers = one_planner ? 0 : p.num_requests * roles.checkers_per_request;
  roles.movers_per_request = static_cast<int>(ctas(num_columns, kRemapThreads));
  return roles;
}

// Plans the whole call and moves up to kPlanes planes from `first_plane` on.
template <int kPlanes>
void launch_planes(const RemapKvParams& p, int32_t* workspace, RemapHeader header, int first_plane,
                   cudaStream_t stream) {
  MovePlanes<kPlanes> batch{};
  batch.num_planes = std::min(p.num_planes - first_plane, kPlanes);
  batch.num_columns = 1;
  batch.finishes = first_plane + batch.num_planes == p.num_planes;
  for (int i = 0; i < batch.num_planes; ++i) {
    const RemapPlane& plane = p.planes[first_plane + i];
    const int width = column_width(plane);
    batch.planes[i] = plane;
    batch.widths[i] = static_cast<uint8_t>(width);
    batch.num_columns =
        std::max(batch.num_columns, int64_t{plane.num_heads} * (plane.head_bytes / width));
  }
  const RemapRoles roles = roles_of(p, batch.num_columns * batch.num_planes);
  const auto num_movers =
      static_cast<unsigned>(p.num_requests) * static_cast<unsigned>(roles.movers_per_request);
  launch(remap_kv_kernel<kPlanes>, static_cast<unsigned>(roles.num_planners()) + num_movers,
         kRemapThreads, sizeof(RemapShared), stream, p, workspace, header, roles, batch);
}

}  // namespace

void remap_kv(const RemapKvParams& p, int32_t* workspace, int32_t* header, cudaStream_t stream) {
  if (p.num_requests == 0) return;
  if (p.num_planes <= kFewPlanes) {
    return launch_planes<kFewPlanes>(p, workspace, {header}, 0, stream);
  }
  // A launch before the last changes nothing that a plan depends on.
  for (int first = 0; first < p.num_planes; first += kMostPlanes) {
    launch_planes<kMostPlanes>(p, workspace, {header}, first, stream);
  }
}

}  // namespace treeattn::cuda
