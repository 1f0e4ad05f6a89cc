// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace treeattn::simt {

// With TREEATTN_SIMT_LAUNCHES=FILE every launch appends a line to FILE, of four fields between
// tabs: the module that holds the kernel, the kernel's offset in it, threads of a CTA, bytes of
// dynamic shared memory. So a tool learns what launchers ask for, without a copy of their rules.
void log_launch(const void* kernel, int64_t num_threads, size_t shared_bytes);

}  // namespace treeattn::simt
