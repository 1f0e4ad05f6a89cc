// SPDX-License-Identifier: Apache-2.0
#include "cuda/accept_path/accept_path.h"
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

int64_t accept_path_workspace_size(int64_t num_nodes) {
  return num_nodes * static_cast<int64_t>(sizeof(Step) / sizeof(int32_t));
}

void accept_path(const AcceptPathParams& p, int32_t* workspace, cudaStream_t stream) {
  Step* const steps = reinterpret_cast<Step*>(workspace);
  with_float_type(p.dtype, [&]<class T>(T) {
    if (p.rule == AcceptRule::kGreedy) {
      launch_accept_path<T, false>(p, steps, stream);
    } else {
      launch_accept_path<T, true>(p, steps, stream);
    }
  });
}

}  // namespace treeattn::cuda
