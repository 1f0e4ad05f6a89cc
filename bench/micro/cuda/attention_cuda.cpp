// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "micro/common/program.h"
#include "micro/cuda/attention.h"
#include "micro/cuda/attention_cases.h"
#include "micro/cuda/attention_check.h"
#include "micro/cuda/timing.h"

namespace treeattn::micro {
namespace {

constexpr DType kDType = DType::kBFloat16;
constexpr double kUsableShare = 0.9;  // of the free memory

struct Demand {
  int64_t bytes = 0;  // that a call must move
  double flops = 0;   // on visible keys
};

Demand demand_of(const AttentionShape& shape, const Plan& plan) {
  const int64_t row = int64_t{shape.head_dim} * element_size(kDType);
  Demand demand{.bytes = 2 * row * shape.num_qo_heads * plan.num_nodes};
  int64_t visible = 0;
  for (int b = 0; b < plan.num_requests; ++b) {
    const int nodes = plan.node_indptr[b + 1] - plan.node_indptr[b];
    demand.bytes += 2 * row * shape.num_kv_heads * (int64_t{plan.context_lens[b]} + nodes);
    visible += int64_t{plan.context_lens[b]} * nodes;
  }
  for (const int32_t depth : plan.depths) visible += depth + 1;
  demand.flops = 4.0 * shape.head_dim * shape.num_qo_heads * static_cast<double>(visible);
  return demand;
}

// `num_sets` caches, queries and results, filled on the device.
std::vector<DeviceTensors> make_sets(Mirror& mirror, const AttentionShape& shape,
                                     const BlockTables& blocks, int num_nodes, int num_sets) {
  const int64_t pool_size =
      int64_t{blocks.num_blocks} * blocks.block_size * shape.num_kv_heads * shape.head_dim;
  const int64_t q_size = int64_t{num_nodes} * shape.num_qo_heads * shape.head_dim;
  uint64_t seed = 0;
  const auto filled = [&](int64_t size) {
    void* const data = mirror.room<uint16_t>(size);
    fill_normal(data, kDType, size, 1.0f, seed += uint64_t{1} << 40, device_stream());
    return data;
  };
  std::vector<DeviceTensors> sets;
  for (int i = 0; i < num_sets; ++i) {
    sets.push_back({.q = filled(q_size),
                    .out = mirror.room<uint16_t>(q_size),
                    .lse = nullptr,
                    .k = filled(pool_size),
                    .v = filled(pool_size)});
  }
  wait_for_device();
  return sets;
}

void measure_case(Sweep& sweep, const Budget& budget, const DeviceCeilings& ceilings,
                  const AttentionCase& c) {
  const std::vector<Parents> trees = c.trees();
  const std::vector<int32_t> lens = c.context_lens();
  const Row cells = c.cells(trees, lens);
  if (!sweep.wants(cells)) return;
  size_t most_nodes = 0;
  for (const Parents& parents : trees) most_nodes = std::max(most_nodes, parents.size());
  // Every request has blocks for the longest one; a ragged batch leaves the rest of them unused.
  const int64_t slots = *std::max_element(lens.begin(), lens.end()) + int64_t(most_nodes);
  const BlockTables blocks = shuffled_blocks(c.num_requests, slots, c.block_size, 2);
  const Plan host = make_plan(trees, lens, blocks);
  const Demand demand = demand_of(c.shape, host);
  const int num_sets = cold_sets(demand.bytes);
  const int64_t set_bytes =
      int64_t{2} * element_size(kDType) *
      (int64_t{blocks.num_blocks} * c.block_size * c.shape.num_kv_heads * c.shape.head_dim +
       int64_t{host.num_nodes} * c.shape.num_qo_heads * c.shape.head_dim);
  const double needed = static_cast<double>(num_sets) * static_cast<double>(set_bytes);
  if (needed > kUsableShare * static_cast<double>(free_device_bytes())) {
    std::fprintf(stderr, "left out for lack of memory: %s %s, batch %d, context %d: %.1f GB\n",
                 c.item.c_str(), c.shape.name, c.num_requests, c.context_len, 1e-9 * needed);
    return;
  }
  Mirror mirror;
  const DevicePlan plan(mirror, host, blocks, c.shape.num_qo_heads, c.shape.num_kv_heads);
  plan.run();
  std::vector<TreeAttentionParams> params;
  for (const DeviceTensors& set : make_sets(mirror, c.shape, blocks, host.num_nodes, num_sets)) {
    params.push_back(attention_params(c.shape, kDType, plan, blocks, set));
  }
  const cuda::AttentionWorkspace workspace = attention_workspace(mirror, plan, params.front());
  const Timing timing = measure_replay(budget, calls_of(num_sets), [&](int call) {
    if (c.plans) plan.run();
    cuda::tree_attention(params[call % num_sets], workspace, device_stream());
  });
  sweep.add(cells, device_cells(timing,
                                {.bytes = static_cast<double>(demand.bytes), .flops = demand.flops},
                                ceilings, true));
}

void sweep_attention(Sweep& sweep) {
  const Budget budget = sweep.quick ? kQuickReplays : kFullReplays;
  const DeviceCeilings ceilings = measure_ceilings(budget);
  for (const AttentionCase& c : attention_cases()) {
    if (c.quick || !sweep.quick) measure_case(sweep, budget, ceilings, c);
  }
}

const Program kProgram{
    .name = "micro_attention_cuda",
    .description =
        std::string(
            "tree_attention of one layer in bf16, after a self-check against the CPU kernel:\n"
            "blocks in shuffled order, read in place. The plan is made once, except in C4. A row "
            "of\nA4 (tree ragged) has the mean of its contexts and nodes.\n") +
        kDeviceColumnsHelp +
        "  gflop, tflops       operations on visible keys only, 10^9; and 10^12 per second\n"
        "  mma_tflops, mma_pct mma.sync from registers in this process, and the share reached. On\n"
        "                      sm_90 and newer other instructions are faster than mma.sync\n",
    .columns = device_columns({{.name = "item", .width = 4},
                               {.name = "model", .width = 14},
                               {.name = "batch", .width = 5},
                               {.name = "ctx", .width = 6},
                               {.name = "nodes", .width = 5},
                               {.name = "tree", .width = 11},
                               {.name = "block", .width = 5},
                               {.name = "call", .width = 14}},
                              true),
    .check = check_device_attention,
    .sweep = sweep_attention,
    .items = {"A1", "A2", "A3", "A4", "A5", "C1", "C2", "C3", "C4"},
    .oracle = "the CPU kernel",
    .require = require_device};

}  // namespace
}  // namespace treeattn::micro

int main(int argc, char** argv) {
  return treeattn::micro::run_program(treeattn::micro::kProgram, argc, argv);
}
