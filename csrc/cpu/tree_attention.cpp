// SPDX-License-Identifier: Apache-2.0
#include "cpu/tree_attention.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "cpu/isa.h"

namespace treeattn::cpu {
namespace {

// A panel is as large as fits: a large one packs each tile of keys for many rows, but its queries
// and the outputs of two streams have to stay in the L2 cache.
constexpr int kPanelBytes = 320 * 1024;
constexpr int kMaxPanelRows = 256;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int group_size(const TreeAttentionParams& p) { return p.num_qo_heads / p.k_pool.num_kv_heads; }

int64_t padded_dim(const TreeAttentionParams& p) { return round_up(p.k_pool.head_dim, kMaxLanes); }

int max_panel_nodes(const TreeAttentionParams& p) {
  const int64_t bytes_per_row =
      padded_dim(p) * (element_size(p.dtype) + 2 * int64_t{sizeof(float)});
  const int64_t rows = std::min<int64_t>(kMaxPanelRows, kPanelBytes / bytes_per_row);
  return static_cast<int>(std::max<int64_t>(1, rows / group_size(p)));
}

// Without a whole tile of context there is nothing for many rows to share, and a small panel stays
// in the L1 cache.
int panel_nodes(const TreeAttentionParams& p, int request) {
  const int most = max_panel_nodes(p);
  return p.context_lens[request] < kTileKeys ? std::min(most, kMaxTileNodes) : most;
}

AttentionLayout attention_layout(const TreeAttentionParams& p,
                                 const std::vector<AttentionPanel>& panels) {
  int num_nodes = 0;
  for (const AttentionPanel& panel : panels) num_nodes = std::max(num_nodes, panel.num_nodes);
  const int64_t dim = padded_dim(p);
  const int64_t rows = round_up(int64_t{num_nodes} * group_size(p), kMaxLanes);
  const int64_t tree_rows = std::min<int64_t>(rows, int64_t{kMaxTileNodes} * group_size(p));
  int64_t size = 0;
  const auto take = [&size](int64_t count) {
    const int64_t offset = size;
    size += round_up(count, kMaxLanes);
    return offset;
  };
  AttentionLayout s{};
  s.state_out = take(rows * dim);
  s.state_maxima = take(rows);
  s.state_sums = take(rows * kMaxLanes);
  s.state_size = size;
  size = 0;
  s.queries = take(rows * dim);
  s.path_queries = take(group_size(p) * dim);
  // Packed tiles lie in panels of at least 16 columns, each followed by 16 elements.
  s.keys = take(kTileKeys * dim + kTileKeys);
  s.values = take((kTileKeys + 1) * round_up(dim, kTileKeys));
  s.scores =
      take(std::max<int64_t>(tree_rows, attention_group_rows(static_cast<int>(dim))) * kTileKeys);
  s.dense = take(tree_rows * kTileKeys);
  s.tops = take(rows);
  s.rescale = take(rows);
  s.union_nodes = take(2 * int64_t{p.num_words} * 32 + 2);  // node ids, then their first by depth
  s.states[0] = take(s.state_size);
  s.states[1] = take(s.state_size);
  s.scratch_size = size;
  return s;
}

AttentionKernel attention_kernel(const TreeAttentionParams& p) {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      return avx512_bf16::attention_kernel(p);
    case Isa::kAvx512:
      return avx512::attention_kernel(p);
    case Isa::kAvx2:
      return avx2::attention_kernel(p);
#endif
    default:
      return portable::attention_kernel(p);
  }
}

// Longest requests first, so that the short ones even out the end; panels of one KV head lie next
// to each other, so that threads meet in its keys.
std::vector<AttentionPanel> attention_panels(const TreeAttentionParams& p) {
  const auto num_nodes = [&p](int b) { return p.node_indptr[b + 1] - p.node_indptr[b]; };
  std::vector<int> requests;
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.status[b] == 0) requests.push_back(b);
  }
  std::stable_sort(requests.begin(), requests.end(), [&](int a, int b) {
    return p.context_lens[a] + num_nodes(a) > p.context_lens[b] + num_nodes(b);
  });
  std::vector<AttentionPanel> panels;
  for (const int b : requests) {
    const int count = (num_nodes(b) + panel_nodes(p, b) - 1) / panel_nodes(p, b);
    const auto add = [&](int i, int head) {
      const int first = static_cast<int>(int64_t{num_nodes(b)} * i / count);
      const int last = static_cast<int>(int64_t{num_nodes(b)} * (i + 1) / count);
      panels.push_back({.request = b, .first = first, .num_nodes = last - first, .kv_head = head});
    };
    const int num_heads = p.k_pool.num_kv_heads;
    if (p.context_lens[b] < kTileKeys) {
      for (int i = 0; i < count * num_heads; ++i) add(i / num_heads, i % num_heads);
    } else {
      for (int i = 0; i < count * num_heads; ++i) add(i % count, i / count);
    }
  }
  return panels;
}

}  // namespace

uint32_t streams_of(const TreeAttentionParams& p, const AttentionPanel& panel) {
  const int begin = p.node_indptr[panel.request];
  const int32_t* places = p.order + begin + panel.first;
  const auto deeper = [&](int a, int b) { return p.depths[begin + a] < p.depths[begin + b]; };
  const auto [least, most] = std::minmax_element(places, places + panel.num_nodes, deeper);
  const int context_len = p.context_lens[panel.request];
  const int first_key =
      p.window > 0 ? std::max(0, context_len + p.depths[begin + *least] - p.window + 1) : 0;
  const int last_key = context_len + p.depths[begin + *most];
  uint32_t streams = 0;
  for (int chunk = first_key / kChunkKeys; chunk <= last_key / kChunkKeys; ++chunk) {
    streams |= 1u << chunk % kNumStreams;
    if (streams == (1u << kNumStreams) - 1) break;
  }
  return streams;
}

AttentionSchedule::AttentionSchedule(const TreeAttentionParams& p, int num_threads)
    : p_(p), kernel_(attention_kernel(p)) {
  const std::vector<AttentionPanel> panels = attention_panels(p);
  layout_ = attention_layout(p, panels);
  const int num_panels = static_cast<int>(panels.size());
  const int num_whole = num_threads > 1 ? num_panels / num_threads * num_threads : num_panels;
  for (int i = 0; i < num_whole; ++i)
    units_.push_back({.panel = panels[i], .stream = -1, .split = -1});
  std::vector<int> num_streams;
  for (int i = num_whole; i < num_panels; ++i) {
    const uint32_t streams = streams_of(p, panels[i]);
    if ((streams & (streams - 1)) == 0) {
      units_.push_back({.panel = panels[i], .stream = -1, .split = -1});
      continue;
    }
    for (uint32_t left = streams; left != 0; left &= left - 1) {
      units_.push_back({.panel = panels[i],
                        .stream = std::countr_zero(left),
                        .split = static_cast<int>(num_streams.size())});
    }
    num_streams.push_back(std::popcount(streams));
  }
  num_split_ = static_cast<int64_t>(num_streams.size());
  streams_left_ = std::make_unique<std::atomic<int>[]>(num_streams.size());
  std::copy(num_streams.begin(), num_streams.end(), streams_left_.get());
}

void AttentionSchedule::run(int64_t index, float* scratch, float* states) {
  const Unit& unit = units_[index];
  if (unit.stream < 0) {
    kernel_.attend(p_, layout_, unit.panel, scratch);
    return;
  }
  float* const panel_states = states + unit.split * kNumStreams * layout_.state_size;
  kernel_.attend_stream(p_, layout_, unit.panel, unit.stream, scratch, panel_states);
  if (--streams_left_[unit.split] == 0) {
    kernel_.merge_streams(p_, layout_, unit.panel, scratch, panel_states);
  }
}

void clear_unowned_rows(const TreeAttentionParams& p) {
  const auto clear = [&p](int begin, int end) {
    for (int node = begin; node < end; ++node) {
      for (int head = 0; head < p.num_qo_heads; ++head) {
        const int64_t offset = node * p.stride_out_node + head * p.stride_out_head;
        std::memset(static_cast<char*>(p.out) + offset * element_size(p.dtype), 0,
                    size_t(p.k_pool.head_dim) * element_size(p.dtype));
        if (p.lse != nullptr) {
          p.lse[int64_t{node} * p.num_qo_heads + head] = -std::numeric_limits<float>::infinity();
        }
      }
    }
  };
  for (int b = 0; b < p.num_requests; ++b) {
    if (p.status[b] != 0) clear(p.node_indptr[b], p.node_indptr[b + 1]);
  }
  clear(p.num_requests ? p.node_indptr[p.num_requests] : 0, p.num_nodes);
}

}  // namespace treeattn::cpu
