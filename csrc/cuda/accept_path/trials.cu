// SPDX-License-Identifier: Apache-2.0
#include "cuda/accept_path/accept_path.h"
#include "cuda/accept_path/columns.cuh"
#include "cuda/accept_path/trials.cuh"
#include "cuda/common/launch.h"

namespace treeattn::cuda {
namespace {

unsigned num_ctas(int threads) {
  return static_cast<unsigned>((int64_t{threads} + kColumnThreads - 1) / kColumnThreads);
}

}  // namespace

void accept_by_trials(AcceptPathParams p, int32_t* workspace, cudaStream_t stream) {
  auto* const nodes = reinterpret_cast<NodeState*>(workspace);
  int32_t* const bad_ids = workspace + int64_t{p.num_nodes} * kNodeStateInts;
  if (reads_drafts(p.rule) && p.drafts.ids != nullptr) {
    int32_t* const columns = bad_ids + 1;
    p.drafts.columns = columns;
    launch(accept_path_clear_columns_kernel, num_ctas(p.vocab_size), kColumnThreads, 0, stream,
           columns, bad_ids, p.vocab_size);
    launch(accept_path_fill_columns_kernel, num_ctas(p.drafts.num_columns), kColumnThreads, 0,
           stream, p.drafts.ids, p.drafts.num_columns, columns, bad_ids, p.vocab_size);
  }
  with_float_type(p.dtype, [&]<class T>(T) {
    const RowLayout layout = row_layout(p.vocab_size, sizeof(T), true, true);
    launch(accept_path_trials_kernel<T>, static_cast<unsigned>(p.num_requests), kRowThreads,
           static_cast<size_t>(layout.bytes) + sizeof(TrialRows<T>), stream, p, layout, nodes,
           bad_ids);
  });
}

}  // namespace treeattn::cuda
