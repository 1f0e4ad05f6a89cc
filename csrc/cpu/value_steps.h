// SPDX-License-Identifier: Apache-2.0
// The V rows of a tile that reaches into the tree: which steps its product takes, which rows use
// which step, and the product itself when V is not finite. Included by VECTOR_SOURCES only.
#pragma once

#include "cpu/ancestor_union.h"

namespace treeattn::cpu::TREEATTN_ISA {

inline void add_context_steps(ValueSteps<FloatStep>& steps, const KeyColumns& columns) {
  for (int c = 0; c < columns.num_context; ++c) steps.add({columns.v_row(c)}, -1, c);
}

inline void add_tree_steps(ValueSteps<FloatStep>& steps, const KeyColumns& columns,
                           const RequestTree&, const KvPool&, int) {
  for (int c = columns.num_context; c < columns.count; ++c) {
    steps.add({columns.v_row(c)}, columns.nodes[c], columns.offsets[c]);
  }
}

#if defined(__AVX512BF16__)
inline void add_context_steps(ValueSteps<PairStep>& steps, const KeyColumns& columns) {
  for (int c = 0; c + 1 < columns.num_context; c += 2) {
    steps.add({columns.v_row(c), columns.v_row(c + 1)}, -1, c / 2);
  }
}

// A row's pairs lie at even virtual keys, whatever the tree: a node at an odd key makes a pair with
// its parent, or with the last context key. A row that sees the tile sees both of every pair.
inline void add_tree_steps(ValueSteps<PairStep>& steps, const KeyColumns& columns,
                           const RequestTree& tree, const KvPool& v_pool, int head) {
  for (int c = columns.num_context; c < columns.count; ++c) {
    if (columns.offsets[c] % 2 == 0) continue;
    const int parent = tree.parent(columns.nodes[c]);
    const char* parent_row = parent >= 0 ? row_of(v_pool, tree.slot(parent), head)
                                         : columns.v_row(columns.num_context - 1);
    steps.add({parent_row, columns.v_row(c)}, columns.nodes[c], columns.offsets[c] / 2);
  }
}
#endif

// Weights by virtual key become weights by step; a row has 0 at the steps it does not use.
template <class Step>
inline void spread_weights(const typename Step::Element* by_key, const ValueSteps<Step>& steps,
                           const TreeTile& tile, int group, typename Step::Element* by_step) {
  constexpr int kBytes = sizeof(typename Step::Element);
  for (int i = 0; i < tile.num_nodes(); ++i) {
    const uint64_t used = tile.path_mask(i, steps.nodes, steps.num_context, steps.count);
    for (int row = i * group; row < (i + 1) * group; ++row) {
      const auto* from = by_key + row * kTileKeys;
      auto* to = by_step + row * kTileKeys;
      std::memcpy(to, from, kBytes * steps.num_context);
      std::memset(to + steps.num_context, 0, kBytes * (steps.count - steps.num_context));
      for (uint64_t left = used; left != 0; left &= left - 1) {
        const int k = __builtin_ctzll(left);
        to[k] = from[steps.source[k]];
      }
    }
  }
}

template <class Step>
inline bool all_finite(const typename Step::Element* values, int num_steps, int padded_dim) {
  bool finite = true;
  for_each_block(1, padded_dim / Vec::kLanes, [&](int, int panel, auto, auto vecs) {
    for (int k = 0; k < num_steps; ++k) {
      for (int c = 0; c < vecs.value; ++c) {
        finite &= Step::all_finite(
            load_elements(values + panel * panel_stride(num_steps) + k * kPanel + c * Vec::kLanes));
      }
    }
  });
  return finite;
}

// value_tile for V rows that are not finite: the same sums, with 0 for V that a row does not see.
template <class Step>
inline void add_seen_values(const typename Step::Element* weights, const ValueSteps<Step>& steps,
                            const TreeTile& tile, int key, int group,
                            const typename Step::Element* values, int padded_dim,
                            const float* rescale, float* out) {
  for (int row = 0; row < tile.num_nodes() * group; ++row) {
    const int i = row / group;
    const int first = tile.sees(i, key) ? tile.first_seen(i, key) : kTileKeys;
    const uint64_t used = tile.path_mask(i, steps.nodes, steps.num_context, steps.count);
    for (int d = 0; d < padded_dim; d += Vec::kLanes) {
      float* const o = out + row * padded_dim + d;
      Vec sum = load(o) * broadcast(rescale[row]);
      for (int k = 0; k < steps.count; ++k) {
        bool seen[Step::kPerStep];
        for (int e = 0; e < Step::kPerStep; ++e) {
          const int offset = steps.source[k] * Step::kPerStep + e;
          seen[e] = (k < steps.num_context || used >> k & 1) && offset >= first;
        }
        const auto* b = values + d / kPanel * panel_stride(steps.count) + k * kPanel + d % kPanel;
        sum = Step::multiply_add(Step::broadcast_element(weights + row * kTileKeys + k),
                                 Step::keep(load_elements(b), seen), sum);
      }
      store(o, sum);
    }
  }
}

}  // namespace treeattn::cpu::TREEATTN_ISA
