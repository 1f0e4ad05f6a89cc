// SPDX-License-Identifier: Apache-2.0
#include "cuda/accept_path/accept_path.h"
#include "cuda/accept_path/counts.cuh"
#include "cuda/accept_path/kernel.cuh"
#include "cuda/common/launch.h"

namespace treeattn::cuda {
namespace {

template <class T, bool kDraws>
void launch_accept_path(const AcceptPathParams& p, Step* steps, cudaStream_t stream) {
  const RowLayout layout =
      row_layout(p.vocab_size, sizeof(T), kDraws, kDraws || p.logprobs != nullptr);
  const auto shared_bytes = static_cast<size_t>(layout.bytes);
  const auto num_requests = static_cast<unsigned>(p.num_requests);
  const int64_t row_bytes = int64_t{p.vocab_size} * static_cast<int64_t>(sizeof(T));
  const bool walks = steps == nullptr || p.processed_logprobs != nullptr ||
                     !reads_all_rows(p.num_nodes, row_bytes, p.max_depth);
  if (walks) {
    launch(accept_path_walk_kernel<T, kDraws>, num_requests, kRowThreads, shared_bytes, stream, p,
           layout);
    return;
  }
  launch(accept_path_rows_kernel<T, kDraws>, static_cast<unsigned>(p.num_nodes), kRowThreads,
         shared_bytes, stream, p, layout, steps);
  launch(accept_path_follow_kernel, num_requests, kFollowThreads, kFollowNodes * sizeof(int),
         stream, p, steps);
}

}  // namespace

int64_t accept_path_workspace_size(const AcceptPathParams& p) {
  if (!takes_trials(p.rule)) return int64_t{p.num_nodes} * kStepInts;
  const bool maps_ids = reads_drafts(p.rule) && p.drafts.ids != nullptr;
  return int64_t{p.num_nodes} * kNodeStateInts + 1 + (maps_ids ? p.vocab_size : 0);
}

void accept_path(const AcceptPathParams& p, int32_t* workspace, cudaStream_t stream) {
  if (takes_trials(p.rule)) {
    accept_by_trials(p, workspace, stream);
  } else {
    Step* const steps = reinterpret_cast<Step*>(workspace);
    with_float_type(p.dtype, [&]<class T>(T) {
      if (p.rule == AcceptRule::kGreedy) {
        launch_accept_path<T, false>(p, steps, stream);
      } else {
        launch_accept_path<T, true>(p, steps, stream);
      }
    });
  }
  if (p.counts.data != nullptr) {
    launch(accept_path_count_kernel, static_cast<unsigned>(p.num_requests), kRowThreads,
           sizeof(Units) * kRowWarps, stream, p);
  }
}

}  // namespace treeattn::cuda
