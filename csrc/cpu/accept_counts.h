// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "treeattn/accept_path.h"

namespace treeattn::cpu {

// Adds what the paths in p.path say to p.counts.
void count_accepted(const AcceptPathParams& p);

}  // namespace treeattn::cpu
