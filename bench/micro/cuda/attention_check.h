// SPDX-License-Identifier: Apache-2.0
// tree_attention on the device, over a plan that the device made, against the CPU kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "micro/attention_call.h"
#include "micro/attention_check.h"
#include "micro/cuda/attention.h"

namespace treeattn::micro {

inline ScalarAttention cpu_attention(AttentionBatch& batch, Workers& workers) {
  const TreeAttentionParams params = batch.params();
  AttentionCall(params, 1).run(workers);
  ScalarAttention result;
  for (int64_t i = 0; i < batch.out.size(); ++i) result.out.push_back(batch.out.get(i));
  result.lse.assign(batch.lse.begin(), batch.lse.end());
  batch.out.poison();
  std::fill(batch.lse.begin(), batch.lse.end(), std::numeric_limits<float>::quiet_NaN());
  return result;
}

// Leaves the device's results in `batch`.
inline void run_on_device(AttentionBatch& batch, bool batch_invariant) {
  Mirror mirror;
  const auto bytes = [&mirror](const Elements& elements) {
    return mirror.copy(static_cast<const char*>(elements.data()), elements.num_bytes());
  };
  const AttentionShape& shape = batch.shape;
  const DevicePlan plan(mirror, batch.plan, batch.blocks, shape.num_qo_heads, shape.num_kv_heads);
  const DeviceTensors tensors{.q = bytes(batch.q),
                              .out = bytes(batch.out),
                              .lse = mirror.copy(batch.lse),
                              .k = bytes(batch.k_pool.elements()),
                              .v = bytes(batch.v_pool.elements())};
  const TreeAttentionParams params =
      attention_params(shape, batch.q.dtype(), plan, batch.blocks, tensors);
  plan.run();
  cuda::tree_attention(params, attention_workspace(mirror, plan, params, batch_invariant),
                       device_stream());
  wait_for_device();
  copy_to_host(batch.out.data(), tensors.out, batch.out.num_bytes());
  fetch(batch.lse, tensors.lse);
}

inline void check_device_attention(Check& check) {
  constexpr AttentionShape kShapes[] = {
      {.name = "9/3 d64", .num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64},
      {.name = "8/2 d128", .num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128},
      {.name = "2/2 d40", .num_qo_heads = 2, .num_kv_heads = 2, .head_dim = 40},
      {.name = "4/1 d256", .num_qo_heads = 4, .num_kv_heads = 1, .head_dim = 256}};
  const std::vector<Parents> trees{deep_tree(70, 8, 1), chain_tree(65), star_tree(17),
                                   chain_tree(1)};
  const std::vector<int32_t> context_lens{0, 33, 1030, 64};  // the third is split
  Workers workers;
  for (const AttentionShape& shape : kShapes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int block_size : {5, 16}) {
        AttentionBatch batch(shape, dtype, shuffled_blocks(4, 1050, block_size, 3), trees,
                             context_lens, 4);
        const ScalarAttention expected = cpu_attention(batch, workers);
        for (const bool batch_invariant : {false, true}) {
          run_on_device(batch, batch_invariant);
          compare_attention(check, batch, expected,
                            std::string(shape.name) + " " + dtype_name(dtype) + " block_size " +
                                std::to_string(block_size) +
                                (batch_invariant ? " batch invariant" : ""));
        }
      }
    }
  }
}

}  // namespace treeattn::micro
