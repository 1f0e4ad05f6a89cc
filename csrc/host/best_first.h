// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "host/draft.h"

namespace treeattn::host {

// The `num_nodes` likeliest paths below `root_token` when the token at depth d + 1 follows the law
// exp(log_probs[d * vocab_size ..]), whatever came before it (DDTree, arXiv 2604.12989). Fewer when
// there are fewer. Ties: the path that was found first, the lower token among siblings.
// Tokens of -inf are left out; above 0 counts as 0.
// Throws std::invalid_argument for a NaN and for num_nodes < 1.
template <class T>
Draft best_first(std::span<const T> log_probs, std::int64_t vocab_size, std::int64_t num_nodes,
                 std::int64_t root_token);

}  // namespace treeattn::host
