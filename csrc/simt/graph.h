// SPDX-License-Identifier: Apache-2.0
// CUDA graphs of the emulator. Work that is submitted while a graph is captured does not run: it is
// kept with its parameters as they were, and a replay runs it again in order. So a test sees which
// values a launcher took from the host.
#pragma once

#include <functional>

#include "simt/runtime_api.h"

namespace treeattn::simt {

using Work = std::function<cudaError_t()>;

// Runs `work` now, or keeps it for the graph.
cudaError_t submit(Work work);

// Forgets the graph before; until end_capture() work is kept.
void begin_capture();
void end_capture();

// Runs the captured work; stops at the first error and returns it.
cudaError_t replay();

}  // namespace treeattn::simt
