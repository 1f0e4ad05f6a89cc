// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "treeattn/plan_tree.h"

namespace treeattn::cpu {

// Throws std::invalid_argument at the first breach of the plan's rules; writes nothing.
void check_plan_tree(const PlanTreeParams& p);

// Plans requests [begin, end); expects checked params.
void plan_tree(const PlanTreeParams& p, int begin, int end);

// Rows past the last request: depth, position, order and ancestors 0, slot -1.
void clear_unplanned_rows(const PlanTreeParams& p);

}  // namespace treeattn::cpu
