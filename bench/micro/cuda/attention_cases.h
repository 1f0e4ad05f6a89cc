// SPDX-License-Identifier: Apache-2.0
// The work items of tree_attention.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "micro/attention_batch.h"
#include "micro/common/draft_trees.h"
#include "micro/common/table.h"

namespace treeattn::micro {

constexpr AttentionShape kLlama8B{
    .name = "llama3_8b", .num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
constexpr AttentionShape kLlama70BTp8{
    .name = "llama3_70b_tp8", .num_qo_heads = 8, .num_kv_heads = 1, .head_dim = 128};
constexpr AttentionShape kQwen06B{
    .name = "qwen3_0.6b", .num_qo_heads = 16, .num_kv_heads = 8, .head_dim = 128};
constexpr AttentionShape kSmolLM2{
    .name = "smollm2", .num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64};

struct AttentionCase {
  std::string item;
  AttentionShape shape = kLlama8B;
  int num_requests = 1;
  int context_len = 8192;
  std::string tree = "eagle-60";
  int block_size = 16;
  bool plans = false;  // a plan is made before each call
  bool quick = false;

  bool is_ragged() const { return tree == "ragged"; }

  // Zipf: the r-th longest context is the longest / r. Trees of all sizes, in no order.
  std::vector<int32_t> context_lens() const {
    std::vector<int32_t> lens(num_requests, context_len);
    constexpr int kLongest = 65536, kShortest = 256;
    for (int b = 0; is_ragged() && b < num_requests; ++b) {
      lens[b] = std::max(kShortest, kLongest / (1 + b * 37 % num_requests));
    }
    return lens;
  }
  std::vector<Parents> trees() const {
    if (!is_ragged()) {
      const std::string dfs = "-dfs";
      const bool reordered = tree.size() > dfs.size() && tree.ends_with(dfs);
      const Parents parents =
          named_tree(reordered ? tree.substr(0, tree.size() - dfs.size()) : tree);
      return std::vector<Parents>(num_requests, reordered ? depth_first(parents) : parents);
    }
    constexpr int kSizes[] = {8, 16, 24, 60, 96, 128, 200, 256};
    std::vector<Parents> trees;
    for (int b = 0; b < num_requests; ++b) {
      trees.push_back(named_tree("seq-" + std::to_string(kSizes[b * 5 % 8])));
    }
    return trees;
  }

  Row cells(const std::vector<Parents>& trees, const std::vector<int32_t>& lens) const {
    int64_t nodes = 0, context = 0;
    for (const Parents& parents : trees) nodes += static_cast<int64_t>(parents.size());
    for (const int32_t len : lens) context += len;
    return {item,
            shape.name,
            int64_t{num_requests},
            context / num_requests,
            nodes / num_requests,
            tree,
            int64_t{block_size},
            plans ? "plan+attention" : "attention"};
  }
};

inline std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  for (const int num_requests : {1, 8, 64}) {
    for (const int context_len : {1024, 8192, 32768, 131072}) {
      cases.push_back({.item = "A1",
                       .num_requests = num_requests,
                       .context_len = context_len,
                       .quick = context_len == 8192 && num_requests < 64});
    }
  }
  for (const int num_nodes : {16, 64, 256, 1024}) {
    for (const int context_len : {1024, 8192}) {
      cases.push_back({.item = "A2",
                       .context_len = context_len,
                       .tree = tree_of_size(num_nodes),
                       .quick = num_nodes >= 256});
    }
  }
  for (const AttentionShape& shape : {kQwen06B, kLlama70BTp8, kSmolLM2}) {
    for (const char* tree : {"eagle-64", "seq-256"}) {
      for (const int context_len : {1024, 8192}) {
        cases.push_back({.item = "A3",
                         .shape = shape,
                         .context_len = context_len,
                         .tree = tree,
                         .quick = context_len == 8192 && tree[0] == 'e'});
      }
    }
  }
  cases.push_back({.item = "A4", .num_requests = 64, .tree = "ragged", .quick = true});
  for (const int block_size : {1, 16, 64, 128}) {
    cases.push_back({.item = "A5",
                     .num_requests = 8,
                     .block_size = block_size,
                     .quick = block_size == 1 || block_size == 64});
  }
  for (const char* size : {"256", "1024"}) {
    for (const int context_len : {0, 512, 8192}) {
      for (const char* kind : {"star", "d4", "d8", "d32", "chain", "dense"}) {
        cases.push_back({.item = "C1",
                         .num_requests = 8,
                         .context_len = context_len,
                         .tree = std::string(kind) + "-" + size,
                         .quick = context_len == 0 && *size == '1'});
      }
    }
  }
  for (const int context_len : {8192, 16384, 32768, 65536, 131072}) {
    cases.push_back({.item = "C2",
                     .context_len = context_len,
                     .tree = "eagle-64",
                     .quick = context_len != 16384 && context_len != 65536});
  }
  for (const int num_nodes : {1, 4, 16, 32, 64, 128, 256, 512, 1024}) {
    cases.push_back({.item = "C3",
                     .tree = tree_of_size(num_nodes),
                     .quick = num_nodes == 1 || num_nodes == 32 || num_nodes == 256});
  }
  for (const char* tree : {"dd-1024", "dd-1024-dfs"}) {
    cases.push_back(
        {.item = "C4", .context_len = 1024, .tree = tree, .plans = true, .quick = true});
  }
  return cases;
}

}  // namespace treeattn::micro
