// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/trial_rows.h"
#include "treeattn/accept_path.h"

namespace treeattn::cpu {

// The request's rule is one of treeattn/accept_rules.h, not a walk along an argmax or a draw.
bool takes_trials(const AcceptPathParams& p, int request);

// Runs that rule for a live request; only rows that it asks for are read.
void accept_by_trials(const AcceptPathParams& p, int request, TrialRows& rows);

}  // namespace treeattn::cpu
