// SPDX-License-Identifier: Apache-2.0
#include "cpu/write_kv.h"

#include "cpu/convert.h"

namespace treeattn::cpu {
namespace {

using namespace TREEATTN_ISA;

struct Rows {
  const void* data;
  int64_t stride_node;
  int64_t stride_head;
};

void write_rows(const Rows& rows, DType dtype, const KvPool& pool, const int64_t* slots,
                int64_t begin, int64_t end) {
  with_element(dtype, [&](auto element) {
    using From = decltype(element);
    for (int64_t node = begin; node < end; ++node) {
      if (slots[node] < 0) continue;
      for (int head = 0; head < pool.num_kv_heads; ++head) {
        const From* from =
            static_cast<const From*>(rows.data) + node * rows.stride_node + head * rows.stride_head;
        const int64_t offset = kv_offset(pool, slots[node], head);
        if (pool.dtype == dtype) {
          std::memcpy(static_cast<From*>(pool.data) + offset, from, sizeof(From) * pool.head_dim);
        } else {
          const float scale = pool.scale ? pool.scale[head * pool.stride_scale] : 1.0f;
          Float8E4M3* to = static_cast<Float8E4M3*>(pool.data) + offset;
          for (int i = 0; i < pool.head_dim; ++i) from_float(to_float(from[i]) / scale, to[i]);
        }
      }
    }
  });
}

}  // namespace

void write_kv(const WriteKvParams& p, int64_t begin, int64_t end) {
  write_rows({p.k, p.stride_k_node, p.stride_k_head}, p.dtype, p.k_pool, p.slot_mapping, begin,
             end);
  write_rows({p.v, p.stride_v_node, p.stride_v_head}, p.dtype, p.v_pool, p.slot_mapping, begin,
             end);
}

}  // namespace treeattn::cpu
