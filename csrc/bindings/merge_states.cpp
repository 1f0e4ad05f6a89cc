// SPDX-License-Identifier: Apache-2.0
#include "bindings/params.h"

namespace treeattn::bindings {

namespace {

AttentionState checked_state(Match& match, const Tensor& out, const char* out_name,
                             std::initializer_list<ScalarType> dtypes, const Tensor& lse,
                             const char* lse_name) {
  match(out, out_name, {"num_nodes", "num_heads", "head_dim"}, dtypes);
  match.packed_from(out, out_name, 2);
  match(lse, lse_name, {"num_nodes", "num_heads"}, {ScalarType::Float});
  return {.out = out.const_data_ptr(),
          .lse = const_data<float>(lse),
          .stride_out_node = out.stride(0),
          .stride_out_head = out.stride(1),
          .stride_lse_node = lse.stride(0),
          .stride_lse_head = lse.stride(1)};
}

}  // namespace

MergeStatesParams merge_states_params(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                                      const Tensor& lse_b, const Tensor& out, const Tensor& lse) {
  Match match("merge_states");
  const AttentionState a = checked_state(match, out_a, "out_a", kFloatTypes, lse_a, "lse_a");
  const ScalarType dtype = out_a.scalar_type();
  const AttentionState b = checked_state(match, out_b, "out_b", {dtype}, lse_b, "lse_b");
  match(out, "out", {"num_nodes", "num_heads", "head_dim"}, {dtype});
  match.packed_from(out, "out", 0);
  match(lse, "lse", {"num_nodes", "num_heads"}, {ScalarType::Float});
  match.packed_from(lse, "lse", 0);
  return {
      .a = a,
      .b = b,
      .out = out.mutable_data_ptr(),
      .lse = mutable_data<float>(lse),
      .num_rows = match["num_nodes"] * match["num_heads"],
      .num_heads = match.size("num_heads"),
      .head_dim = match.size("head_dim"),
      .dtype = to_dtype(dtype),
  };
}

}  // namespace treeattn::bindings
