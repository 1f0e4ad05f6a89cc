// SPDX-License-Identifier: Apache-2.0
// Tree attention of one tile of query rows, with an online softmax over tiles of 64 keys.
//
// A row's keys lie on a virtual axis: key j < context_len is logical slot j, key context_len + d is
// its ancestor of depth d. Key tiles are aligned on that axis, so a row meets the same tiles, in
// the same lanes, whatever else is in the tree: its bits equal those of decoding its path alone.
// - A tile inside the context is one dense product for all rows, without mask code.
// - A tile that reaches into the tree (or is cut by a window) multiplies with the union of the
//   rows' ancestors of those depths, gathered in place; each row then picks its own ancestor per
//   depth (`compact`: row x virtual key), so softmax sees a dense tile again.
// Unseen V rows get weight 0; when one of them is not finite, 0 * V is avoided key by key.
#include "cpu/tree_attention_kernel.h"

#include "cpu/attention_gemm.h"
#include "cpu/convert.h"
#include "cpu/key_columns.h"

namespace treeattn::cpu::TREEATTN_ISA {
namespace {

constexpr float kInf = __builtin_inff();
constexpr int kMaxTileNodes = 64;

class TileAttention {
 public:
  TileAttention(const TreeAttentionParams& p, const AttentionScratch& scratch,
                const AttentionTile& tile, float* memory)
      : p_(p),
        tile_(tile),
        begin_(p.node_indptr[tile.request]),
        context_len_(p.context_lens[tile.request]),
        group_(p.num_qo_heads / p.k_pool.num_kv_heads),
        num_rows_(tile.num_nodes * group_),
        padded_dim_(padded(p.k_pool.head_dim)),
        q_(memory + scratch.q),
        out_(memory + scratch.out),
        max_(memory + scratch.max),
        sum_(memory + scratch.sum),
        rescale_(memory + scratch.rescale),
        k_transposed_(memory + scratch.k_transposed),
        v_packed_(memory + scratch.v_rows),
        scores_(memory + scratch.scores),
        compact_(memory + scratch.compact),
        union_nodes_(reinterpret_cast<int*>(memory + scratch.union_nodes)),
        depth_begin_(union_nodes_ + p.num_words * 32) {
    for (int i = 0; i < tile.num_nodes; ++i) {
      nodes_[i] = p.order[begin_ + tile.first + i];
      positions_[i] = context_len_ + depth(nodes_[i]);
      min_position_ = i == 0 ? positions_[i] : min_int(min_position_, positions_[i]);
      max_position_ = i == 0 ? positions_[i] : max_int(max_position_, positions_[i]);
    }
  }

  void run() {
    load_queries();
    sort_union_by_depth();
    const int first_key = p_.window > 0 ? max_int(0, min_position_ - p_.window + 1) : 0;
    const int first_whole = p_.window > 0 ? max_position_ - p_.window + 1 : 0;
    for (int key = first_key / kTileKeys * kTileKeys; key <= max_position_; key += kTileKeys) {
      if (key >= first_whole && key + kTileKeys <= context_len_) {
        attend_context(key);
      } else {
        attend_masked(key);
      }
    }
    finish();
  }

 private:
  int depth(int node_id) const { return p_.depths[begin_ + node_id]; }
  const uint32_t* ancestors(int node_id) const {
    return p_.ancestors + int64_t{begin_ + node_id} * p_.num_words;
  }
  static bool has_bit(const uint32_t* words, int bit) { return words[bit / 32] >> bit % 32 & 1; }
  int qo_head(int row) const { return tile_.kv_head * group_ + row % group_; }

  // Virtual keys [first, last) of the tile starting at `key` that node i sees.
  int first_seen(int i, int key) const {
    const int first = p_.window > 0 ? positions_[i] - p_.window + 1 - key : 0;
    return max_int(0, min_int(kTileKeys, first));
  }
  int last_seen(int i, int key) const {
    return max_int(0, min_int(kTileKeys, positions_[i] + 1 - key));
  }

  void load_queries() {
    const float k_scale =
        p_.k_pool.scale ? p_.k_pool.scale[tile_.kv_head * p_.k_pool.stride_scale] : 1.0f;
    with_element(p_.dtype, [&](auto element) {
      using T = decltype(element);
      for (int row = 0; row < num_rows_; ++row) {
        const int64_t offset =
            (begin_ + nodes_[row / group_]) * p_.stride_q_node + qo_head(row) * p_.stride_q_head;
        load_row(q_ + row * padded_dim_, static_cast<const T*>(p_.q) + offset, p_.k_pool.head_dim,
                 padded_dim_, p_.sm_scale * k_scale);
      }
    });
    std::memset(out_, 0, sizeof(float) * num_rows_ * padded_dim_);
    for (int row = 0; row < num_rows_; ++row) {
      max_[row] = -kInf;
      sum_[row] = 0.0f;
    }
  }

  // The tile's ancestors (self included), by depth, then id: a counting sort.
  void sort_union_by_depth() {
    const int max_depth = max_position_ - context_len_;
    for (int d = 0; d <= max_depth + 1; ++d) depth_begin_[d] = 0;
    const auto for_each_in_union = [this](auto&& f) {
      for (int word = 0; word < p_.num_words; ++word) {
        uint32_t bits = 0;
        for (int i = 0; i < tile_.num_nodes; ++i) bits |= ancestors(nodes_[i])[word];
        for (; bits != 0; bits &= bits - 1) f(word * 32 + __builtin_ctz(bits));
      }
    };
    for_each_in_union([this](int id) { ++depth_begin_[depth(id) + 1]; });
    for (int d = 0; d <= max_depth; ++d) depth_begin_[d + 1] += depth_begin_[d];
    for_each_in_union([this](int id) { union_nodes_[depth_begin_[depth(id)]++] = id; });
    for (int d = max_depth + 1; d > 0; --d) depth_begin_[d] = depth_begin_[d - 1];
    depth_begin_[0] = 0;
  }

  void add_key(KeyColumns& columns, int64_t slot, int node_id, int offset) const {
    columns.add(row_of(p_.k_pool, slot, tile_.kv_head), row_of(p_.v_pool, slot, tile_.kv_head),
                node_id, offset);
  }

  void add_context_keys(KeyColumns& columns, int key, int count) const {
    const int32_t* blocks = p_.block_table + tile_.request * p_.stride_block_table;
    const int block_size = p_.k_pool.block_size;
    for (int i = 0; i < count; ++i) {
      const int slot = key + i;
      add_key(columns, int64_t{blocks[slot / block_size]} * block_size + slot % block_size, -1, i);
    }
    columns.num_context = columns.count;
  }

  // Soft cap and ALiBi on the scores of all rows for virtual keys key .. key + kTileKeys.
  void bend_scores(float* scores, int key) {
    if (p_.logits_soft_cap > 0.0f) {
      const Vec cap = broadcast(p_.logits_soft_cap), two = broadcast(2.0f), one = broadcast(1.0f);
      const Vec limit = broadcast(-80.0f);
      for (int i = 0; i < num_rows_ * kTileKeys; i += Vec::kLanes) {
        // tanh(x) = 1 - 2 / (e^2x + 1); bounded so that e^2x stays finite, NaN kept
        const Vec minus_2x = max(limit, (broadcast(-2.0f) * load(scores + i)) / cap);
        const Vec e = exp(broadcast(0.0f) - minus_2x);
        store(scores + i, cap * (one - two / (e + one)));
      }
    }
    if (p_.alibi_slopes == nullptr) return;
    for (int row = 0; row < num_rows_; ++row) {
      const float slope = p_.alibi_slopes[qo_head(row)];
      const int first = key - positions_[row / group_];
      for (int i = 0; i < kTileKeys; ++i) {
        scores[row * kTileKeys + i] += slope * static_cast<float>(first + i);
      }
    }
  }

  // Scores become weights exp(score - max); max, sum and the factor for `out` are brought up to
  // date.
  void softmax(float* scores) {
    constexpr int kVecs = kTileKeys / Vec::kLanes;
    for (int row = 0; row < num_rows_; ++row) {
      float* s = scores + row * kTileKeys;
      Vec x[kVecs];
      for (int i = 0; i < kVecs; ++i) x[i] = load(s + i * Vec::kLanes);
      Vec top = x[0];
      for (int i = 1; i < kVecs; ++i) top = max(top, x[i]);
      const float new_max = __builtin_fmaxf(max_[row], reduce_max(top));
      // While nothing is seen, -inf - -inf would be NaN: any finite shift gives weights of 0.
      const Vec shift = broadcast(new_max == -kInf ? 0.0f : new_max);
      Vec total = broadcast(0.0f);
      for (int i = 0; i < kVecs; ++i) {
        x[i] = exp(x[i] - shift);
        total = total + x[i];
        store(s + i * Vec::kLanes, x[i]);
      }
      float rescale[Vec::kLanes];
      store(rescale, exp(broadcast(max_[row]) - shift));
      rescale_[row] = rescale[0];
      sum_[row] = sum_[row] * rescale[0] + reduce_add(total);
      max_[row] = new_max;
    }
  }

  void attend_context(int key) {
    KeyColumns columns;
    add_context_keys(columns, key, kTileKeys);
    pack_keys(columns, p_.k_pool, k_transposed_);
    score_tile(q_, padded_dim_, num_rows_, k_transposed_, p_.k_pool.head_dim, kTileKeys, scores_);
    bend_scores(scores_, key);
    softmax(scores_);
    const float* v_rows[kTileKeys];
    pack_values(columns, p_.v_pool, v_packed_, v_rows);
    value_tile(scores_, num_rows_, v_rows, padded_dim_, kTileKeys, rescale_, out_);
  }

  // Calls f(columns) with the context keys and tree nodes of one virtual tile, 64 at a time.
  template <class F>
  void for_each_columns(int key, F&& f) {
    KeyColumns columns;
    add_context_keys(columns, key, max_int(0, min_int(kTileKeys, context_len_ - key)));
    const int first_depth = max_int(0, key - context_len_);
    const int last_depth = min_int(max_position_ + 1, key + kTileKeys) - context_len_;
    const int first = last_depth > first_depth ? depth_begin_[first_depth] : 0;
    const int last = last_depth > first_depth ? depth_begin_[last_depth] : 0;
    for (int i = first; i < last; ++i) {
      if (columns.count == kTileKeys) {
        f(columns);
        columns.count = columns.num_context = 0;
      }
      const int id = union_nodes_[i];
      add_key(columns, p_.slot_mapping[begin_ + id], id, context_len_ + depth(id) - key);
    }
    f(columns);
  }

  // Bit c: node i sees column c.
  uint64_t seen_columns(int i, int key, const KeyColumns& columns) const {
    const int first = first_seen(i, key), last = last_seen(i, key);
    const uint32_t* words = ancestors(nodes_[i]);
    uint64_t seen = 0;
    for (int c = 0; c < columns.count; ++c) {
      const bool in_range = columns.offsets[c] >= first && columns.offsets[c] < last;
      const bool on_path = c < columns.num_context || has_bit(words, columns.nodes[c]);
      seen |= uint64_t{in_range && on_path} << c;
    }
    return seen;
  }

  // Calls f(c) for the tree nodes among the columns that node i sees.
  template <class F>
  void for_each_seen_node(int i, int key, const KeyColumns& columns, F&& f) const {
    if (columns.num_context == kTileKeys) return;
    uint64_t seen = seen_columns(i, key, columns) >> columns.num_context << columns.num_context;
    for (; seen != 0; seen &= seen - 1) f(__builtin_ctzll(seen));
  }

  void attend_masked(int key) {
    for_each_columns(key, [&](const KeyColumns& columns) {
      pack_keys(columns, p_.k_pool, k_transposed_);
      score_tile(q_, padded_dim_, num_rows_, k_transposed_, p_.k_pool.head_dim, columns.count,
                 scores_);
      for (int row = 0; row < num_rows_; ++row) {
        const float* from = scores_ + row * kTileKeys;
        float* to = compact_ + row * kTileKeys;
        std::memcpy(to, from, sizeof(float) * columns.num_context);
        for_each_seen_node(row / group_, key, columns,
                           [&](int c) { to[columns.offsets[c]] = from[c]; });
      }
    });
    bend_scores(compact_, key);
    for (int row = 0; row < num_rows_; ++row) {
      float* s = compact_ + row * kTileKeys;
      for (int i = 0; i < first_seen(row / group_, key); ++i) s[i] = -kInf;
      for (int i = last_seen(row / group_, key); i < kTileKeys; ++i) s[i] = -kInf;
    }
    softmax(compact_);
    for_each_columns(key, [&](const KeyColumns& columns) {
      const float* v_rows[kTileKeys];
      pack_values(columns, p_.v_pool, v_packed_, v_rows);
      for (int row = 0; row < num_rows_; ++row) {
        const float* from = compact_ + row * kTileKeys;
        float* to = scores_ + row * kTileKeys;
        std::memset(to, 0, sizeof(float) * kTileKeys);
        std::memcpy(to, from, sizeof(float) * columns.num_context);
        for_each_seen_node(row / group_, key, columns,
                           [&](int c) { to[c] = from[columns.offsets[c]]; });
      }
      if (all_rows_finite(v_rows, columns.count, padded_dim_)) {
        value_tile(scores_, num_rows_, v_rows, padded_dim_, columns.count, rescale_, out_);
      } else {
        add_seen_values(key, columns, v_rows);
      }
      for (int row = 0; row < num_rows_; ++row) rescale_[row] = 1.0f;
    });
  }

  // value_tile for V rows that are not finite: the same sums, over the keys that each row sees.
  void add_seen_values(int key, const KeyColumns& columns, const float* const* v_rows) {
    for (int row = 0; row < num_rows_; ++row) {
      const uint64_t seen = seen_columns(row / group_, key, columns);
      const float* weights = scores_ + row * kTileKeys;
      for (int d = 0; d < padded_dim_; d += Vec::kLanes) {
        float* out = out_ + row * padded_dim_ + d;
        Vec sum = load(out) * broadcast(rescale_[row]);
        for (uint64_t left = seen; left != 0; left &= left - 1) {
          const int c = __builtin_ctzll(left);
          sum = fma(broadcast(weights[c]), load(v_rows[c] + d), sum);
        }
        store(out, sum);
      }
    }
  }

  void finish() {
    const float v_scale =
        p_.v_pool.scale ? p_.v_pool.scale[tile_.kv_head * p_.v_pool.stride_scale] : 1.0f;
    for (int row = 0; row < num_rows_; ++row) {
      const int head = qo_head(row);
      float sum = sum_[row], top = max_[row], rescale = 1.0f;
      if (p_.sinks != nullptr) {
        const float sink = p_.sinks[head];
        const float new_top = __builtin_fmaxf(top, sink);
        rescale = __builtin_expf(top - new_top);
        sum = sum * rescale + __builtin_expf(sink - new_top);
        top = new_top;
      }
      const int64_t global = begin_ + nodes_[row / group_];
      if (p_.lse != nullptr) {
        p_.lse[global * p_.num_qo_heads + head] = top + __builtin_logf(sum);
      }
      float* out = out_ + row * padded_dim_;
      const Vec factor = broadcast(rescale * v_scale), total = broadcast(sum);
      for (int d = 0; d < padded_dim_; d += Vec::kLanes) {
        store(out + d, load(out + d) * factor / total);
      }
      with_element(p_.dtype, [&](auto element) {
        using T = decltype(element);
        store_row(static_cast<T*>(p_.out) + global * p_.stride_out_node + head * p_.stride_out_head,
                  out, p_.k_pool.head_dim);
      });
    }
  }

  const TreeAttentionParams& p_;
  const AttentionTile& tile_;
  const int begin_, context_len_, group_, num_rows_, padded_dim_;
  float *const q_, *const out_, *const max_, *const sum_, *const rescale_;  // per row
  float *const k_transposed_, *const v_packed_, *const scores_, *const compact_;
  int* const union_nodes_;  // by depth
  int* const depth_begin_;  // [max depth + 2], into union_nodes
  int nodes_[kMaxTileNodes], positions_[kMaxTileNodes];
  int min_position_ = 0, max_position_ = 0;
};

}  // namespace

void attend_tile(const TreeAttentionParams& p, const AttentionScratch& scratch,
                 const AttentionTile& tile, float* memory) {
  TileAttention(p, scratch, tile, memory).run();
}

}  // namespace treeattn::cpu::TREEATTN_ISA
