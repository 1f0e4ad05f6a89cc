// SPDX-License-Identifier: Apache-2.0
#include "bindings/params.h"

namespace treeattn::bindings {

WriteKvParams write_kv_params(const Tensor& k, const Tensor& v, const Tensor& k_cache,
                              const Tensor& v_cache, const Tensor& slot_mapping,
                              const OptTensor& k_scale, const OptTensor& v_scale) {
  Match match("write_kv");
  const KvPool k_pool = kv_pool(match, k_cache, "k_cache", k_scale, "k_scale");
  const KvPool v_pool = kv_pool(match, v_cache, "v_cache", v_scale, "v_scale");
  TREEATTN_CHECK(k_pool.dtype == v_pool.dtype, "write_kv: v_cache must have k_cache's dtype, ",
                 dtype_name(k_cache.scalar_type()), ", got ", dtype_name(v_cache.scalar_type()));
  match(k, "k", {"num_nodes", "num_kv_heads", "head_dim"}, kFloatTypes);
  match.packed_from(k, "k", 2);
  match(v, "v", {"num_nodes", "num_kv_heads", "head_dim"}, {k.scalar_type()});
  match.packed_from(v, "v", 2);
  TREEATTN_CHECK(k_pool.dtype == DType::kFloat8E4M3 || k.scalar_type() == k_cache.scalar_type(),
                 "write_kv: k must have k_cache's dtype, ", dtype_name(k_cache.scalar_type()),
                 ", unless the pool is float8_e4m3fn; got ", dtype_name(k.scalar_type()));
  match(slot_mapping, "slot_mapping", {"num_nodes"}, {ScalarType::Long});
  match.packed_from(slot_mapping, "slot_mapping", 0);

  return {
      .k = k.const_data_ptr(),
      .v = v.const_data_ptr(),
      .slot_mapping = const_data<int64_t>(slot_mapping),
      .k_pool = k_pool,
      .v_pool = v_pool,
      .stride_k_node = k.stride(0),
      .stride_k_head = k.stride(1),
      .stride_v_node = v.stride(0),
      .stride_v_head = v.stride(1),
      .num_nodes = match.size("num_nodes"),
      .dtype = to_dtype(k.scalar_type()),
  };
}

}  // namespace treeattn::bindings
