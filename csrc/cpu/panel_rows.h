// SPDX-License-Identifier: Apache-2.0
// What the rows of a panel are: their queries, their keys' places, their scores' scale and their
// results. Included by VECTOR_SOURCES only.
#pragma once

#include "cpu/ancestor_union.h"
#include "cpu/path_product.h"
#include "cpu/softmax_rows.h"
#include "cpu/tree_attention_kernel.h"

namespace treeattn::cpu::TREEATTN_ISA {

class PanelRows {
 protected:
  PanelRows(const TreeAttentionParams& p, const AttentionPanel& panel)
      : p_(p),
        panel_(panel),
        tree_(p, panel.request),
        group_(p.num_qo_heads / p.k_pool.num_kv_heads),
        num_rows_(panel.num_nodes * group_),
        padded_dim_(padded(p.k_pool.head_dim)) {
    const float k_scale =
        p.k_pool.scale ? p.k_pool.scale[panel.kv_head * p.k_pool.stride_scale] : 1.0f;
    const float scale = p.sm_scale * k_scale;
    query_sign_ = scale < 0.0f ? -1.0f : scale == 0.0f ? 0.0f : 1.0f;
    score_scale_ = scale == 0.0f ? 1.0f : __builtin_fabsf(scale);
    const bool bent = p.logits_soft_cap > 0.0f || p.alibi_slopes != nullptr;
    factor_ = bent ? kLog2E : score_scale_ * kLog2E;
    for (int i = 0; i < panel.num_nodes; ++i) {
      const int at = position(i);
      min_position_ = i == 0 ? at : min_int(min_position_, at);
      max_position_ = i == 0 ? at : max_int(max_position_, at);
    }
  }

  int qo_head(int row) const { return panel_.kv_head * group_ + row % group_; }
  int position(int i) const {
    return tree_.context_len + tree_.depth(tree_.node_at(panel_.first + i));
  }
  // The first tile with a key that some row sees.
  int first_key() const {
    const int first = p_.window > 0 ? max_int(0, min_position_ - p_.window + 1) : 0;
    return first / kTileKeys * kTileKeys;
  }
  // Whether all rows see all keys of a tile, as part of the context.
  bool is_whole(int key) const {
    return key + kTileKeys <= tree_.context_len &&
           (p_.window == 0 || key > max_position_ - p_.window);
  }

  void add_context(KeyColumns& columns, int key, int count) const {
    add_context_keys(columns, p_.k_pool, p_.v_pool,
                     p_.block_table + panel_.request * p_.stride_block_table, panel_.kv_head, key,
                     count);
  }

  void add_node(KeyColumns& columns, int id, int offset) const {
    const int64_t slot = tree_.slot(id);
    const int64_t block = slot / p_.k_pool.block_size;
    const int64_t row = slot - block * p_.k_pool.block_size;
    columns.add(row_of(p_.k_pool, block, row, panel_.kv_head),
                row_of(p_.v_pool, block, row, panel_.kv_head), id, offset);
  }

  // Calls f(row of the node, load(to, sign)) for the node's heads.
  template <class F>
  void load_node_queries(int i, F&& f) const {
    const int64_t node = tree_.begin + tree_.node_at(panel_.first + i);
    with_element(p_.dtype, [&](auto element) {
      using T = decltype(element);
      for (int row = 0; row < group_; ++row) {
        const T* q =
            static_cast<const T*>(p_.q) + node * p_.stride_q_node + qo_head(row) * p_.stride_q_head;
        f(row,
          [&](auto* to, float sign) { load_query(to, q, p_.k_pool.head_dim, padded_dim_, sign); });
      }
    });
  }

  // A node's queries as floats: where they lie, or copied into `memory`.
  QueryRows node_queries(int i, float* memory) const {
    if (p_.dtype == DType::kFloat32 && query_sign_ == 1.0f && p_.k_pool.head_dim == padded_dim_) {
      const int64_t node = tree_.begin + tree_.node_at(panel_.first + i);
      const int64_t head = panel_.kv_head * group_;
      return {static_cast<const float*>(p_.q) + node * p_.stride_q_node + head * p_.stride_q_head,
              p_.stride_q_head};
    }
    load_node_queries(i,
                      [&](int row, auto load) { load(memory + row * padded_dim_, query_sign_); });
    return {memory, padded_dim_};
  }

  // Soft cap and ALiBi on `num_rows` rows of scores for virtual keys key ...
  void bend_scores(float* scores, int first_row, int num_rows, int key) {
    if (p_.logits_soft_cap <= 0.0f && p_.alibi_slopes == nullptr) return;
    const Vec scale = broadcast(score_scale_);
    const int size = num_rows * kTileKeys;
    for (int i = 0; i < size; i += Vec::kLanes) store(scores + i, load(scores + i) * scale);
    if (p_.logits_soft_cap > 0.0f) {
      const Vec cap = broadcast(p_.logits_soft_cap), two = broadcast(2.0f), one = broadcast(1.0f);
      const Vec limit = broadcast(-80.0f);
      for (int i = 0; i < size; i += Vec::kLanes) {
        // tanh(x) = 1 - 2 / (e^2x + 1); bounded so that e^2x stays finite, NaN kept
        const Vec minus_2x = max(limit, (broadcast(-2.0f) * load(scores + i)) / cap);
        const Vec e = exp(broadcast(0.0f) - minus_2x);
        store(scores + i, cap * (one - two / (e + one)));
      }
    }
    if (p_.alibi_slopes == nullptr) return;
    for (int row = 0; row < num_rows; ++row) {
      const float slope = p_.alibi_slopes[qo_head(first_row + row)];
      const int first = key - position((first_row + row) / group_);
      for (int i = 0; i < kTileKeys; ++i) {
        scores[row * kTileKeys + i] += slope * static_cast<float>(first + i);
      }
    }
  }

  // Writes the row's lse. Returns what the sum of its weighted V must be multiplied with.
  float finish_row(int row, const RowStates& states) {
    const float v_scale =
        p_.v_pool.scale ? p_.v_pool.scale[panel_.kv_head * p_.v_pool.stride_scale] : 1.0f;
    const int head = qo_head(row);
    float sum = reduce_add(load(states.sums + row * Vec::kLanes));
    float top = states.maxima[row] * factor_ * kLn2, rescale = 1.0f;
    if (p_.sinks != nullptr) {
      const float sink = p_.sinks[head];
      const float new_top = __builtin_fmaxf(top, sink);
      rescale = __builtin_expf(top - new_top);
      sum = sum * rescale + __builtin_expf(sink - new_top);
      top = new_top;
    }
    if (p_.lse != nullptr) {
      p_.lse[node_of(row) * p_.num_qo_heads + head] = top + __builtin_logf(sum);
    }
    return rescale * v_scale / sum;
  }

  int64_t node_of(int row) const {
    return tree_.begin + tree_.node_at(panel_.first + row / group_);
  }

  // values: the row's weighted sum of V
  void write_row(int row, const float* values, const RowStates& states) {
    const float factor = finish_row(row, states);
    with_element(p_.dtype, [&](auto element) {
      using T = decltype(element);
      store_row(static_cast<T*>(p_.out) + node_of(row) * p_.stride_out_node +
                    qo_head(row) * p_.stride_out_head,
                values, p_.k_pool.head_dim, factor);
    });
  }

  void write_rows(const RowStates& states) {
    for (int row = 0; row < num_rows_; ++row) {
      write_row(row, states.out + row * padded_dim_, states);
    }
  }

  const TreeAttentionParams& p_;
  const AttentionPanel& panel_;
  const RequestTree tree_;
  const int group_, num_rows_, padded_dim_;
  // Scores are products of K with queries times the sign of the scale; a weight is
  // 2^((score - maximum) * factor), where bent scores are in natural units already.
  float query_sign_, score_scale_, factor_;
  int min_position_ = 0, max_position_ = 0;

 private:
  static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
};

}  // namespace treeattn::cpu::TREEATTN_ISA
