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

void copy_rows(const Rows& rows, const KvPool& pool, const int64_t* slots, int64_t begin,
               int64_t end) {
  const int64_t bytes = element_size(pool.dtype);
  // Heads that follow each other on both sides go in one piece.
  const bool joined = rows.stride_head == pool.head_dim && pool.stride_head == pool.head_dim;
  const int num_pieces = joined ? 1 : pool.num_kv_heads;
  const int64_t piece_bytes = bytes * pool.head_dim * (joined ? pool.num_kv_heads : 1);
  for (int64_t node = begin; node < end; ++node) {
    if (slots[node] < 0) continue;
    const char* from = static_cast<const char*>(rows.data) + node * rows.stride_node * bytes;
    char* to = static_cast<char*>(pool.data) + kv_offset(pool, slots[node], 0) * bytes;
    for (int piece = 0; piece < num_pieces; ++piece) {
      std::memcpy(to, from, piece_bytes);
      from += rows.stride_head * bytes;
      to += pool.stride_head * bytes;
    }
  }
}

void quantise_rows(const Rows& rows, DType dtype, const KvPool& pool, const int64_t* slots,
                   int64_t begin, int64_t end) {
  with_element(dtype, [&](auto element) {
    using From = decltype(element);
    for (int64_t node = begin; node < end; ++node) {
      if (slots[node] < 0) continue;
      for (int head = 0; head < pool.num_kv_heads; ++head) {
        const From* from =
            static_cast<const From*>(rows.data) + node * rows.stride_node + head * rows.stride_head;
        Float8E4M3* to = static_cast<Float8E4M3*>(pool.data) + kv_offset(pool, slots[node], head);
        const float scale = pool.scale ? pool.scale[head * pool.stride_scale] : 1.0f;
        for (int i = 0; i < pool.head_dim; ++i) from_float(to_float(from[i]) / scale, to[i]);
      }
    }
  });
}

void write_rows(const Rows& rows, DType dtype, const KvPool& pool, const int64_t* slots,
                int64_t begin, int64_t end) {
  if (pool.dtype == dtype) {
    copy_rows(rows, pool, slots, begin, end);
  } else {
    quantise_rows(rows, dtype, pool, slots, begin, end);
  }
}

}  // namespace

void write_kv(const WriteKvParams& p, int64_t begin, int64_t end) {
  write_rows({p.k, p.stride_k_node, p.stride_k_head}, p.dtype, p.k_pool, p.slot_mapping, begin,
             end);
  write_rows({p.v, p.stride_v_node, p.stride_v_head}, p.dtype, p.v_pool, p.slot_mapping, begin,
             end);
}

}  // namespace treeattn::cpu
