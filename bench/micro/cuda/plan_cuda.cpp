// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "micro/common/program.h"
#include "micro/cuda/plan.h"
#include "micro/cuda/plan_check.h"
#include "micro/cuda/timing.h"

namespace treeattn::micro {
namespace {

constexpr int kContextLen = 8192;
constexpr int kBlockSize = 16;
constexpr int kQoHeads = 32, kKvHeads = 8;

struct PlanCase {
  int num_requests;
  int num_nodes;
  std::string tree;

  Row cells() const { return {tree, int64_t{num_requests}, int64_t{num_nodes}}; }
};

std::vector<PlanCase> all_cases(bool quick) {
  std::vector<int> batches{1, 8, 64, 256}, sizes{16, 64, 256, 1024};
  if (quick) {
    batches = {1, 64};
    sizes = {64, 1024};
  }
  std::vector<PlanCase> cases;
  for (const int num_requests : batches) {
    for (const int num_nodes : sizes) {
      for (const std::string& tree : {tree_of_size(num_nodes), "star-" + std::to_string(num_nodes),
                                      "chain-" + std::to_string(num_nodes)}) {
        cases.push_back({.num_requests = num_requests, .num_nodes = num_nodes, .tree = tree});
      }
    }
  }
  return cases;
}

// Inputs and outputs once; of the block table only what covers the nodes is needed for slots, but
// all of it up to the context is validated.
double plan_bytes(const Plan& plan, const BlockTables& blocks) {
  const double per_node = 4 + 4 + 4 + 8 + 4 + 4.0 * plan.num_words;
  return plan.num_nodes * per_node + plan.num_requests * 3.0 * 4 +
         4.0 * static_cast<double>(blocks.table.size());
}

void sweep_plan(Sweep& sweep) {
  const Budget budget = sweep.quick ? kQuickReplays : kFullReplays;
  const DeviceCeilings ceilings = measure_ceilings(budget);
  for (const PlanCase& c : all_cases(sweep.quick)) {
    if (!sweep.wants(c.cells())) continue;
    const BlockTables blocks =
        shuffled_blocks(c.num_requests, kContextLen + c.num_nodes, kBlockSize, 2);
    const Plan host = make_plan(std::vector<Parents>(c.num_requests, named_tree(c.tree)),
                                std::vector<int32_t>(c.num_requests, kContextLen), blocks);
    Mirror mirror;
    const DevicePlan plan(mirror, host, blocks, kQoHeads, kKvHeads);
    const Timing timing = measure_replay(budget, kFewestCalls, [&](int) { plan.run(); });
    sweep.add(c.cells(),
              device_cells(timing, {.bytes = plan_bytes(host, blocks)}, ceilings, false));
  }
}

const Program kProgram{
    .name = "micro_plan_cuda",
    .description =
        std::string(
            "plan_tree, once per step for all layers, after a self-check against the CPU "
            "kernel:\ncontext 8192, blocks of 16; all requests have the same tree. Its data "
            "stays in L2.\n") +
        kDeviceColumnsHelp,
    .columns = device_columns({{.name = "tree", .width = 10},
                               {.name = "batch", .width = 5},
                               {.name = "nodes", .width = 5}},
                              false),
    .check = check_plan,
    .sweep = sweep_plan,
    .oracle = "the CPU kernel",
    .require = require_device};

}  // namespace
}  // namespace treeattn::micro

int main(int argc, char** argv) {
  return treeattn::micro::run_program(treeattn::micro::kProgram, argc, argv);
}
