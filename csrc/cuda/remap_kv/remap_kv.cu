// SPDX-License-Identifier: Apache-2.0
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

void launch_moves(const RemapKvParams& p, int32_t* workspace, int first_plane,
                  cudaStream_t stream) {
  const int left = p.num_planes - first_plane;
  MovePlanes batch{};
  batch.num_planes = left < kPlanesPerLaunch ? left : kPlanesPerLaunch;
  batch.finishes = first_plane == 0;
  int64_t most_columns = 1;
  for (int i = 0; i < batch.num_planes; ++i) {
    const RemapPlane& plane = p.planes[first_plane + i];
    const int width = column_width(plane);
    batch.planes[i] = plane;
    batch.widths[i] = static_cast<uint8_t>(width);
    const int64_t columns = int64_t{plane.num_heads} * (plane.head_bytes / width);
    most_columns = columns > most_columns ? columns : most_columns;
  }
  const int64_t shares = (most_columns + kMoveThreads - 1) / kMoveThreads;
  constexpr int64_t kMaxShares = 65535;  // of a grid; threads take more columns beyond that
  const dim3 grid(static_cast<unsigned>(p.num_requests), static_cast<unsigned>(batch.num_planes),
                  static_cast<unsigned>(shares < kMaxShares ? shares : kMaxShares));
  launch(remap_kv_move_kernel, grid, kMoveThreads, 0, stream, p, workspace, batch);
}

}  // namespace

void remap_kv(const RemapKvParams& p, int32_t* workspace, cudaStream_t stream) {
  const int num_ctas = (p.num_requests + kPlanWarps - 1) / kPlanWarps;
  const auto grid = static_cast<unsigned>(num_ctas);
  if (num_ctas > 1) launch(remap_kv_claim_kernel, grid, kPlanThreads, 0, stream, p, workspace);
  launch(remap_kv_plan_kernel, grid, kPlanThreads, sizeof(int), stream, p, workspace);
  for (int first = 0; first < p.num_planes; first += kPlanesPerLaunch) {
    launch_moves(p, workspace, first, stream);
  }
}

}  // namespace treeattn::cuda
