// SPDX-License-Identifier: Apache-2.0
#include "cpu/merge_states.h"

#include "bindings/ops.h"
#include "bindings/threads.h"

namespace treeattn::bindings {

void merge_states(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                  const Tensor& lse_b, const Tensor& out, const Tensor& lse) {
  Match match("merge_states");
  match(out_a, "out_a", {"num_nodes", "num_heads", "head_dim"}, kFloatTypes);
  match(out_b, "out_b", {"num_nodes", "num_heads", "head_dim"}, {out_a.scalar_type()});
  match(out, "out", {"num_nodes", "num_heads", "head_dim"}, {out_a.scalar_type()});
  match(lse_a, "lse_a", {"num_nodes", "num_heads"}, {ScalarType::Float});
  match(lse_b, "lse_b", {"num_nodes", "num_heads"}, {ScalarType::Float});
  match(lse, "lse", {"num_nodes", "num_heads"}, {ScalarType::Float});
  match.packed_from(out_a, "out_a", 0);
  match.packed_from(out_b, "out_b", 0);
  match.packed_from(out, "out", 0);
  match.packed_from(lse_a, "lse_a", 0);
  match.packed_from(lse_b, "lse_b", 0);
  match.packed_from(lse, "lse", 0);
  const MergeStatesParams params{
      .out_a = out_a.const_data_ptr(),
      .lse_a = const_data<float>(lse_a),
      .out_b = out_b.const_data_ptr(),
      .lse_b = const_data<float>(lse_b),
      .out = out.mutable_data_ptr(),
      .lse = mutable_data<float>(lse),
      .num_rows = match["num_nodes"] * match["num_heads"],
      .head_dim = match.size("head_dim"),
      .dtype = to_dtype(out_a.scalar_type()),
  };
  constexpr int64_t kRowsPerThread = 256;
  parallel_for(params.num_rows, kRowsPerThread,
               [&](int64_t begin, int64_t end) { cpu::merge_states(params, begin, end); });
}

}  // namespace treeattn::bindings
