// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/rows_ahead.h"
#include "treeattn/accept_path.h"

namespace treeattn::cpu {

// Throws std::invalid_argument at the first breach of the op's rules; writes nothing.
void check_accept_path(const AcceptPathParams& p);

// DraftLaws::columns, empty where no ids are given. Throws likewise.
std::vector<int32_t> draft_columns(const AcceptPathParams& p);

// Walks the trees of requests [begin, end); only rows on the walk are read.
void accept_path(const AcceptPathParams& p, int begin, int end);

// The same for all requests, one after the other, each with all threads. For batches that leave
// threads idle; rows beside the walk may be read, and have no influence.
void accept_path_ahead(const AcceptPathParams& p, const OnThreads& on_threads);
bool pays_to_read_ahead(const AcceptPathParams& p, int num_threads);

}  // namespace treeattn::cpu
