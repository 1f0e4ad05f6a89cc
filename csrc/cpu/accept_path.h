// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "treeattn/accept_path.h"

namespace treeattn::cpu {

// Throws std::invalid_argument at the first breach of the op's rules; writes nothing.
void check_accept_path(const AcceptPathParams& p);

// Walks the trees of requests [begin, end); only rows on the walk are read.
void accept_path(const AcceptPathParams& p, int begin, int end);

}  // namespace treeattn::cpu
