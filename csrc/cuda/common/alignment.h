// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

namespace treeattn::cuda {

// Rows that start at any sum of `strides` (in elements) past `base` are aligned to `bytes`.
// Launchers choose between wide and narrow accesses with it.
inline bool rows_aligned(const void* base, std::initializer_list<int64_t> strides,
                         int element_bytes, int bytes) {
  if (reinterpret_cast<uintptr_t>(base) % bytes != 0) return false;
  for (int64_t stride : strides) {
    if (stride * element_bytes % bytes != 0) return false;
  }
  return true;
}

}  // namespace treeattn::cuda
