// SPDX-License-Identifier: Apache-2.0
// Tree attention of a panel of query rows, with an online softmax over tiles of 64 keys.
//
// Tiles are aligned on the virtual axis (tree_attention_kernel.h), so a row meets the same tiles,
// in the same lanes, whatever else is in the tree: its bits equal those of decoding its path alone.
// - A tile inside the context is one product for all rows of the panel, without mask code.
// - The tile that holds a node itself, which is its last, is done node by node: the node's heads
//   times the keys of its path, read in place. Most trees need nothing else: the cost is that of
//   what is seen.
// - A tile that reaches into the tree but not to the end of the path (deep trees), or is cut by a
//   window, is done 16 nodes at a time: it multiplies with the union of the nodes' ancestors of
//   those depths; each row then picks its own ancestor per depth (`dense`: row x virtual key), so
//   softmax sees a dense tile again. Where every depth has one node (a chain), columns are virtual
//   keys already. Unseen V rows get weight 0; when one of them is not finite, 0 * V is avoided
//   element by element.
#include "cpu/tree_attention_kernel.h"

#include "cpu/path_product.h"
#include "cpu/tiles_ahead.h"
#include "cpu/value_steps.h"

namespace treeattn::cpu::TREEATTN_ISA {
namespace {

template <class Step>
class PanelAttention : public TilesAhead {
 public:
  PanelAttention(const TreeAttentionParams& p, const AttentionLayout& layout,
                 const AttentionPanel& panel, float* scratch)
      : TilesAhead(p, panel),
        rows_per_group_(attention_group_rows(padded_dim_)),
        queries_(reinterpret_cast<Element*>(scratch + layout.queries)),
        keys_(reinterpret_cast<Element*>(scratch + layout.keys)),
        values_(reinterpret_cast<Element*>(scratch + layout.values)),
        path_queries_(scratch + layout.path_queries),
        scores_(scratch + layout.scores),
        dense_(scratch + layout.dense),
        tops_(scratch + layout.tops),
        rescale_(scratch + layout.rescale),
        union_nodes_(reinterpret_cast<int*>(scratch + layout.union_nodes)) {}

  // next_stream: what this thread does after it, or -1
  void attend_stream(int stream, int next_stream, const RowStates& states) {
    clear(states, num_rows_, padded_dim_);
    next_stream_ = next_stream;
    for (int chunk = stream; chunk <= max_position_ / kChunkKeys; chunk += kNumStreams) {
      const int end = min_int(max_position_ + 1, (chunk + 1) * kChunkKeys);
      int key = max_int(chunk * kChunkKeys, first_key());
      while (key < end) {
        if (is_whole(key)) {
          attend_context(key, states);
          key += kTileKeys;
        } else {
          const int first = key;
          while (key < end && !is_whole(key)) key += kTileKeys;
          attend_tree(first, key, states);
        }
      }
    }
  }

  // Whether the rows see no more than the first tile of the axis.
  bool is_one_tile() const { return max_position_ < kTileKeys; }

  // All there is to do for such rows: nothing is gathered on the way.
  void attend_one_tile(const RowStates& states) {
    clear(states, num_rows_, 0);
    for (int first = 0; first < panel_.num_nodes; first += kMaxTileNodes) {
      const int num_nodes = min_int(kMaxTileNodes, panel_.num_nodes - first);
      PathKeys paths[kMaxTileNodes];
      const int width = collect_paths(first, num_nodes, 0, paths);
      weigh_paths(paths, first, num_nodes, width, states.from_row(first * group_, padded_dim_));
      const FreshRows node_rows{states.out, padded_dim_};
      for (int i = 0; i < num_nodes; ++i) {
        with_element(p_.v_pool.dtype, [&](auto element) {
          value_path<decltype(element)>(scores_ + i * group_ * kTileKeys, group_, paths[i],
                                        p_.v_pool.head_dim, node_rows);
        });
        for (int r = 0; r < group_; ++r) {
          write_row((first + i) * group_ + r, node_rows.out + r * padded_dim_, states);
        }
      }
    }
  }

  using PanelRows::write_rows;

  void merge(const RowStates& a, const RowStates& b) {
    merge_rows(a, b, num_rows_, padded_dim_, factor_, tops_, rescale_, scores_);
  }

 private:
  using Element = typename Step::Element;

  // The queries of all rows for the products of whole tiles, once.
  void load_queries() {
    if (queries_loaded_) return;
    queries_loaded_ = true;
    for (int i = 0; i < panel_.num_nodes; ++i) {
      load_node_queries(i, [&](int row, auto load) {
        load(queries_ + (i * group_ + row) * padded_dim_, query_sign_);
      });
    }
  }

  // The rows of a tile come from far away, and a pool may put all of them into a few sets of the
  // L2 cache: V is fetched while the first rows are scored, and only then the next tile's K. Few
  // rows are done before a tile has come: they fetch K and V of the next one all the time, and of
  // a stream's first tile V while K is packed.
  void attend_context(int key, const RowStates& states) {
    load_queries();
    KeyColumns columns, next;
    add_context(columns, key, kTileKeys);
    const bool few = has_few_rows();
    const int score_blocks = num_blocks(min_int(rows_per_group_, num_rows_), kTileKeys);
    Prefetch fetch_values(columns.rows + kTileKeys, nullptr, kTileKeys, row_bytes(),
                          few ? num_squares() / kPiecesPerBlock : score_blocks, few ? 2 : 1);
    Prefetch fetch_next = fetch_after(key, num_squares() + num_value_pieces(), next), none;
    Prefetch& first_fetch = fetched_key_ == key ? fetch_next : fetch_values;
    fetched_key_ = tile_after(key);
    pack_keys<Step>(columns, p_.k_pool, keys_, few ? first_fetch : none);
    ValueSteps<Step> steps;
    add_context_steps(steps, columns);
    for (int row = 0; row < num_rows_; row += rows_per_group_) {
      const int num_rows = min_int(rows_per_group_, num_rows_ - row);
      const RowStates group = states.from_row(row, padded_dim_);
      score_tile<Step>(queries_ + row * padded_dim_, padded_dim_, num_rows, keys_, num_steps(),
                       kTileKeys, scores_, row == 0 && !few ? fetch_values : fetch_next);
      bend_scores(scores_, row, num_rows, key);
      softmax_rows<Step>(scores_, num_rows, kTileKeys, factor_, group, tops_, rescale_);
      if (row == 0) pack_values(steps, p_.v_pool, values_, few ? fetch_next : none);
      value_tile<Step>(reinterpret_cast<const Element*>(scores_), num_rows, values_, steps.count,
                       padded_dim_, rescale_, group.out, fetch_next);
    }
  }

  // The pieces of packing K, and V.
  int num_squares() const { return kTileKeys / Vec::kLanes * (padded(num_steps()) / Vec::kLanes); }
  static constexpr int num_value_pieces() { return kTileKeys / Step::kPerStep / kPieceSteps; }

  void attend_tree(int first_key, int last_key, const RowStates& states) {
    for (int i = 0; i < panel_.num_nodes; i += kMaxTileNodes) {
      const int num_nodes = min_int(kMaxTileNodes, panel_.num_nodes - i);
      const RowStates rows = states.from_row(i * group_, padded_dim_);
      int last_position = 0;
      for (int j = i; j < i + num_nodes; ++j) last_position = max_int(last_position, position(j));
      if (last_position < first_key + kTileKeys) {
        attend_own_tiles(i, num_nodes, first_key, rows);
        continue;
      }
      load_queries();
      const TreeTile tile(tree_, panel_.first + i, num_nodes, union_nodes_);
      for (int key = first_key; key < last_key; key += kTileKeys) {
        if (tile.any_sees(key)) attend_tree_tile(tile, i * group_, key, rows);
        attend_own_tiles(i, num_nodes, key, rows);
      }
    }
  }

  // The keys of some nodes in the tile that starts at `key`, where they lie in it themselves.
  // Returns the largest count, padded. In depth-first order a path differs from the one before it
  // only from the node's own depth on.
  int collect_paths(int first, int num_nodes, int key, PathKeys* paths) const {
    KeyColumns seen;  // context keys, then the ancestors of the current node
    add_context(seen, key, max_int(0, min_int(kTileKeys, tree_.context_len - key)));
    const int first_depth = max_int(0, key - tree_.context_len);
    const int first_node = tree_.node_at(panel_.first + first);
    tree_.for_each_ancestor(first_node, first_depth, [&](int id) {
      if (seen.count < kTileKeys) add_node(seen, id, seen.count);
    });
    int width = 0;
    for (int i = 0; i < num_nodes; ++i) {
      const int node = tree_.node_at(panel_.first + first + i);
      const int at = tree_.context_len + tree_.depth(node);
      if (at < key || at >= key + kTileKeys) continue;
      seen.count = at - key;
      add_node(seen, node, seen.count);
      paths[i].take(seen, p_.window > 0 ? max_int(0, at - p_.window + 1 - key) : 0);
      paths[i].first += key;
      width = max_int(width, paths[i].count);
    }
    return padded(width);
  }

  // The weights of the keys of `paths` in scores_.
  void weigh_paths(const PathKeys* paths, int first, int num_nodes, int width,
                   const RowStates& states) {
    for (int i = 0; i < num_nodes; ++i) {
      float* const scores = scores_ + i * group_ * kTileKeys;
      if (paths[i].count > 0) {
        const QueryRows queries = node_queries(first + i, path_queries_);
        with_element(p_.k_pool.dtype, [&](auto element) {
          score_path<decltype(element)>(queries, group_, paths[i], p_.k_pool.head_dim, scores);
        });
        bend_scores(scores, (first + i) * group_, group_, paths[i].first);
      }
      for (int row = 0; row < group_; ++row) {
        fill(scores + row * kTileKeys, paths[i].count, width, -kInf);
      }
    }
    softmax_rows<FloatStep>(scores_, num_nodes * group_, width, factor_, states, tops_, rescale_);
  }

  // The tile that starts at `key`, for those of some nodes that lie in it themselves.
  void attend_own_tiles(int first, int num_nodes, int key, const RowStates& states) {
    PathKeys paths[kMaxTileNodes];
    const int width = collect_paths(first, num_nodes, key, paths);
    if (width == 0) return;
    weigh_paths(paths, first, num_nodes, width, states);
    const GatheredRows rows{states.out, padded_dim_, rescale_};
    for (int i = 0; i < num_nodes; ++i) {
      const int row = i * group_;
      with_element(p_.v_pool.dtype, [&](auto element) {
        value_path<decltype(element)>(scores_ + row * kTileKeys, group_, paths[i],
                                      p_.v_pool.head_dim, rows.from_row(row));
      });
    }
  }

  // Calls f(columns, all) with the context keys and union nodes of one virtual tile, 64 at a time;
  // `all` says that there is just one call.
  template <class F>
  void for_each_columns(const TreeTile& tile, int key, F&& f) {
    KeyColumns columns;
    add_context(columns, key, max_int(0, min_int(kTileKeys, tree_.context_len - key)));
    const auto nodes = tile.nodes_of_depths(max_int(0, key - tree_.context_len),
                                            key + kTileKeys - tree_.context_len);
    const bool all = columns.count + nodes.size() <= kTileKeys;
    for (const int id : nodes) {
      if (columns.count == kTileKeys) {
        f(columns, all);
        columns.count = columns.num_context = 0;
      }
      add_node(columns, id, tree_.context_len + tree_.depth(id) - key);
    }
    f(columns, all);
  }

  // The scores of a tile by virtual key: in scores_ where its columns are that already, else
  // gathered into dense_.
  float* score_tree_tile(const TreeTile& tile, int first_row, int key) {
    float* dense = dense_;
    Prefetch none;
    for_each_columns(tile, key, [&](const KeyColumns& columns, bool all) {
      pack_keys<Step>(columns, p_.k_pool, keys_, none);
      score_tile<Step>(queries_ + first_row * padded_dim_, padded_dim_, tile.num_nodes() * group_,
                       keys_, num_steps(), columns.count, scores_, none);
      if (all && columns.in_order()) {
        dense = scores_;
        return;
      }
      for (int i = 0; i < tile.num_nodes(); ++i) {
        const uint64_t seen = tile.path_mask(i, columns.nodes, columns.num_context, columns.count);
        for (int row = i * group_; row < (i + 1) * group_; ++row) {
          const float* from = scores_ + row * kTileKeys;
          float* to = dense_ + row * kTileKeys;
          std::memcpy(to, from, sizeof(float) * columns.num_context);
          for (uint64_t left = seen; left != 0; left &= left - 1) {
            const int c = __builtin_ctzll(left);
            to[columns.offsets[c]] = from[c];
          }
        }
      }
    });
    return dense;
  }

  void attend_tree_tile(const TreeTile& tile, int first_row, int key, const RowStates& states) {
    const int num_rows = tile.num_nodes() * group_;
    float* const dense = score_tree_tile(tile, first_row, key);
    bend_scores(dense, first_row, num_rows, key);
    for (int row = 0; row < num_rows; ++row) {
      const int i = row / group_;
      const int num_unseen = tile.sees(i, key) ? tile.first_seen(i, key) : kTileKeys;
      for (int c = 0; c < num_unseen; ++c) dense[row * kTileKeys + c] = -kInf;
    }
    softmax_rows<Step>(dense, num_rows, kTileKeys, factor_, states, tops_, rescale_);

    const auto* by_key = reinterpret_cast<const Element*>(dense);
    auto* const by_step = reinterpret_cast<Element*>(dense == scores_ ? dense_ : scores_);
    for_each_columns(tile, key, [&](const KeyColumns& columns, bool all) {
      ValueSteps<Step> steps;
      add_context_steps(steps, columns);
      add_tree_steps(steps, columns, tree_, p_.v_pool, panel_.kv_head);
      Prefetch none;
      pack_values(steps, p_.v_pool, values_, none);
      const Element* weights = by_key;
      if (!all || !steps.in_order()) {
        spread_weights(by_key, steps, tile, group_, by_step);
        weights = by_step;
      }
      if (all_finite<Step>(values_, steps.count, padded_dim_)) {
        value_tile<Step>(weights, num_rows, values_, steps.count, padded_dim_, rescale_, states.out,
                         none);
      } else {
        add_seen_values(weights, steps, tile, key, group_, values_, padded_dim_, rescale_,
                        states.out);
      }
      for (int row = 0; row < num_rows; ++row) rescale_[row] = 1.0f;
    });
  }

  int num_steps() const { return steps_of(Step{}, p_.k_pool.head_dim); }

  const int rows_per_group_;
  Element *const queries_, *const keys_, *const values_;
  float* const path_queries_;  // of one node
  float *const scores_, *const dense_, *const tops_, *const rescale_;
  int* const union_nodes_;
  bool queries_loaded_ = false;
  int fetched_key_ = -1;  // of the tile that was fetched ahead: its K, for few rows also V
};

RowStates states_at(const AttentionLayout& layout, float* memory) {
  return {.out = memory + layout.state_out,
          .maxima = memory + layout.state_maxima,
          .sums = memory + layout.state_sums};
}

template <class Step>
void attend(const TreeAttentionParams& p, const AttentionLayout& layout,
            const AttentionPanel& panel, float* scratch) {
  PanelAttention<Step> attention(p, layout, panel, scratch);
  const RowStates all = states_at(layout, scratch + layout.states[0]);
  const RowStates one = states_at(layout, scratch + layout.states[1]);
  if (attention.is_one_tile()) return attention.attend_one_tile(all);
  uint32_t streams = streams_of(p, panel);
  for (bool first = true; streams != 0; first = false) {
    const int stream = __builtin_ctz(streams);
    streams &= streams - 1;
    const int next = streams != 0 ? __builtin_ctz(streams) : -1;
    attention.attend_stream(stream, next, first ? all : one);
    if (!first) attention.merge(all, one);
  }
  attention.write_rows(all);
}

template <class Step>
void attend_stream(const TreeAttentionParams& p, const AttentionLayout& layout,
                   const AttentionPanel& panel, int stream, float* scratch, float* states) {
  PanelAttention<Step> attention(p, layout, panel, scratch);
  attention.attend_stream(stream, -1, states_at(layout, states + stream * layout.state_size));
}

template <class Step>
void merge_streams(const TreeAttentionParams& p, const AttentionLayout& layout,
                   const AttentionPanel& panel, float* scratch, float* states) {
  PanelAttention<Step> attention(p, layout, panel, scratch);
  uint32_t streams = streams_of(p, panel);
  const auto state_of = [&](int stream) {
    return states_at(layout, states + stream * layout.state_size);
  };
  const RowStates all = state_of(__builtin_ctz(streams));
  for (streams &= streams - 1; streams != 0; streams &= streams - 1) {
    attention.merge(all, state_of(__builtin_ctz(streams)));
  }
  attention.write_rows(all);
}

template <class Step>
AttentionKernel kernel_of() {
  return {attend<Step>, attend_stream<Step>, merge_streams<Step>};
}

}  // namespace

AttentionKernel attention_kernel([[maybe_unused]] const TreeAttentionParams& p) {
#if defined(__AVX512BF16__)
  if (p.dtype == DType::kBFloat16 && p.k_pool.dtype == DType::kBFloat16) {
    return kernel_of<PairStep>();
  }
#endif
  return kernel_of<FloatStep>();
}

}  // namespace treeattn::cpu::TREEATTN_ISA
