// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/stream.h"
#include "treeattn/accept_path.h"

namespace treeattn::cuda {

// int32 values that the kernels leave for each other: what every row says, for rules greedy and
// target; what a rule keeps of every node, and where the target's ids lie in a draft's row.
int64_t accept_path_workspace_size(const AcceptPathParams& p);

// `workspace`: accept_path_workspace_size values, any content, 16-byte aligned. For rules greedy
// and target it may be nullptr, which makes the walk lazy whatever the cost rule (reads_all_rows in
// config.h) says. What a request gets does not depend on which way was taken, bit by bit.
//
// What only the device can see is status kInvalid of its request: offsets out of range; but for
// rule greedy temperature < 0 or NaN, and where temperature > 0: top_p <= 0 or NaN, min_p > 1 or
// NaN, neither seeds nor uniforms, and for rules that read drafts no draft laws, draft rows out of
// range, draft ids out of range or repeated, for rule block a tree that is no chain, without
// replacement siblings of one row with one token.
//
// Against the CPU op: greedy choices, statuses, the sets that top-k and min-p keep and the weight
// of each id are the same bit by bit. Sums over the target are exact here (integers, see
// row_weight.cuh) and rounded in fp32 over 512 ids there, in an order that depends on the
// instruction set; so a draw, or the last id of a top-p set, may differ where the uniform, or
// top_p, lies within that rounding (some 1e-6 of the row's mass) of the boundary between two ids,
// and a coin where it lies as close to its chance, and nowhere else.
void accept_path(const AcceptPathParams& p, int32_t* workspace, cudaStream_t stream);

// The part of accept_path that is in trials.cu: all rules but greedy and target.
void accept_by_trials(AcceptPathParams p, int32_t* workspace, cudaStream_t stream);

}  // namespace treeattn::cuda
