// SPDX-License-Identifier: Apache-2.0
// tree_attention against a scalar loop in double precision that knows parents, not ancestors, and
// takes node slots from the block table.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "micro/attention_batch.h"
#include "micro/attention_call.h"
#include "micro/common/check.h"
#include "micro/common/isas.h"
#include "micro/common/trees.h"

namespace treeattn::micro {

struct ScalarAttention {
  std::vector<double> out;  // as AttentionBatch::out
  std::vector<double> lse;
};

inline ScalarAttention scalar_attention(const AttentionBatch& batch) {
  const AttentionShape& shape = batch.shape;
  const int group = shape.num_qo_heads / shape.num_kv_heads;
  const double scale = 1 / std::sqrt(double(shape.head_dim));
  ScalarAttention result;
  const auto attend = [&](int row, int head, const std::vector<int64_t>& slots) {
    const auto at = [&](const Pool& pool, int64_t slot, int i) {
      return pool.elements().get(slot * pool.row_size() + head / group * shape.head_dim + i);
    };
    std::vector<double> weights;
    for (const int64_t slot : slots) {
      double score = 0;
      for (int i = 0; i < shape.head_dim; ++i) {
        const int64_t query = (int64_t{row} * shape.num_qo_heads + head) * shape.head_dim + i;
        score += batch.q.get(query) * at(batch.k_pool, slot, i);
      }
      weights.push_back(score * scale);
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - max);
    result.lse.push_back(max + std::log(total));
    for (int i = 0; i < shape.head_dim; ++i) {
      double sum = 0;
      for (size_t k = 0; k < slots.size(); ++k) sum += weights[k] * at(batch.v_pool, slots[k], i);
      result.out.push_back(sum / total);
    }
  };
  for (int b = 0; b < batch.plan.num_requests; ++b) {
    const int start = batch.plan.node_indptr[b];
    const int context_len = batch.plan.context_lens[b];
    for (int row = start; row < batch.plan.node_indptr[b + 1]; ++row) {
      std::vector<int64_t> slots;
      for (int i = 0; i < context_len; ++i) slots.push_back(batch.blocks.slot(b, i));
      for (int node = row - start; node >= 0; node = batch.plan.parents[start + node]) {
        slots.push_back(batch.blocks.slot(b, context_len + node));
      }
      for (int head = 0; head < shape.num_qo_heads; ++head) attend(row, head, slots);
    }
  }
  return result;
}

inline void compare_attention(Check& check, const AttentionBatch& batch,
                              const ScalarAttention& expected, const std::string& name) {
  // Outputs are averages of values of variance 1. bf16 rounds them, and where the CPU multiplies
  // bf16 pairs also the weights, to 8 bits.
  const double tolerance = batch.q.dtype() == DType::kFloat32 ? 1e-5 : 2e-2;
  const auto where = [&](const char* what, int64_t i, int64_t per_head) {
    return [=, &batch, &name] {
      const int64_t row = i / per_head;
      const std::string element = per_head > 1 ? ", " + std::to_string(i % per_head) : "";
      return name + " " + what + "[" + std::to_string(row / batch.shape.num_qo_heads) + ", " +
             std::to_string(row % batch.shape.num_qo_heads) + element + "]";
    };
  };
  for (int64_t i = 0; i < batch.out.size(); ++i) {
    check.compare(batch.out.get(i), expected.out[i], tolerance,
                  where("out", i, batch.shape.head_dim));
  }
  for (size_t i = 0; i < batch.lse.size(); ++i) {
    check.compare(batch.lse[i], expected.lse[i], 1e-5, where("lse", static_cast<int64_t>(i), 1));
  }
  check.end_case();
}

inline void check_attention(Check& check) {
  constexpr AttentionShape kShapes[] = {
      {.name = "9/3 d64", .num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64},
      {.name = "8/2 d128", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128},
      {.name = "2/2 d40", .num_qo_heads = 2, .num_kv_heads = 2, .head_dim = 40}};
  const std::vector<Parents> trees{deep_tree(70, 8, 1), chain_tree(65), star_tree(17),
                                   chain_tree(1)};
  const std::vector<int32_t> context_lens{0, 33, 130, 64};
  Workers workers;
  for (const AttentionShape& shape : kShapes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int block_size : {5, 16}) {
        AttentionBatch batch(shape, dtype, shuffled_blocks(4, 150, block_size, 3), trees,
                             context_lens, 4);
        const ScalarAttention expected = scalar_attention(batch);
        const TreeAttentionParams params = batch.params();
        for (const cpu::Isa isa : supported_isas()) {
          use_isa(isa);
          for (const int threads : {1, 2}) {
            batch.out.poison();
            std::fill(batch.lse.begin(), batch.lse.end(), std::numeric_limits<float>::quiet_NaN());
            AttentionCall(params, threads).run(workers);
            compare_attention(check, batch, expected,
                              std::string(shape.name) + " " + dtype_name(dtype) + " block_size " +
                                  std::to_string(block_size) + " " + cpu::isa_name(isa) +
                                  " threads " + std::to_string(threads));
          }
        }
      }
    }
  }
}

}  // namespace treeattn::micro
