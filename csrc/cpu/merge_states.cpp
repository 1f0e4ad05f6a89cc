// SPDX-License-Identifier: Apache-2.0
#include "cpu/merge_states.h"

#include <cmath>
#include <limits>

#include "cpu/convert.h"

namespace treeattn::cpu {

using namespace TREEATTN_ISA;

void merge_states(const MergeStatesParams& p, int64_t begin, int64_t end) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  with_element(p.dtype, [&](auto element) {
    using T = decltype(element);
    const size_t row_bytes = sizeof(T) * p.head_dim;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t node = row / p.num_heads, head = row % p.num_heads;
      const auto out_of = [&](const AttentionState& state) {
        return static_cast<const T*>(state.out) + node * state.stride_out_node +
               head * state.stride_out_head;
      };
      const auto lse_of = [&](const AttentionState& state) {
        return state.lse[node * state.stride_lse_node + head * state.stride_lse_head];
      };
      const T* a = out_of(p.a);
      const T* b = out_of(p.b);
      T* out = static_cast<T*>(p.out) + row * p.head_dim;
      const float lse_a = lse_of(p.a), lse_b = lse_of(p.b);
      float& lse = p.lse[row];
      if (lse_a == kEmpty && lse_b == kEmpty) {
        lse = kEmpty;
        std::memset(out, 0, row_bytes);
        continue;
      }
      if (lse_a == kEmpty || lse_b == kEmpty) {
        lse = lse_a == kEmpty ? lse_b : lse_a;
        std::memcpy(out, lse_a == kEmpty ? b : a, row_bytes);
        continue;
      }
      const float top = std::fmax(lse_a, lse_b);
      const float weight_a = std::exp(lse_a - top), weight_b = std::exp(lse_b - top);
      const float total = weight_a + weight_b;
      lse = top + std::log(total);
      for (int i = 0; i < p.head_dim; ++i) {
        from_float((weight_a * to_float(a[i]) + weight_b * to_float(b[i])) / total, out[i]);
      }
    }
  });
}

}  // namespace treeattn::cpu
