// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "micro/common/draft_trees.h"
#include "micro/common/program.h"
#include "micro/cuda/remap.h"
#include "micro/cuda/remap_check.h"
#include "micro/cuda/timing.h"

namespace treeattn::micro {
namespace {

constexpr int kNodes = 64;
constexpr int kContextLen = 100;
constexpr double kUsableShare = 0.9;  // of the free memory

struct Model {
  const char* name;
  int num_layers;
  int num_kv_heads;
  int head_dim;
};

constexpr Model kSmolLM2{.name = "smollm2", .num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
constexpr Model kQwen{.name = "qwen3_0.6b", .num_layers = 28, .num_kv_heads = 8, .head_dim = 128};
constexpr Model kLlama8B{.name = "llama3_8b", .num_layers = 32, .num_kv_heads = 8, .head_dim = 128};
constexpr Model kLlama70BTp8{
    .name = "llama3_70b_tp8", .num_layers = 80, .num_kv_heads = 1, .head_dim = 128};

struct RemapCase {
  std::string item;
  Model model;
  int num_requests;
  int accepted;
  std::string path = "scattered";  // no row is in place; or first_child, whole_block
  bool quick = false;

  // With one row per block every accepted row is a whole block.
  int block_size() const { return path == "whole_block" ? 1 : 16; }
  int64_t row_bytes() const {
    return int64_t{4} * model.num_layers * model.num_kv_heads * model.head_dim;
  }
  double moved_bytes() const {
    const int rows = path == "scattered" ? num_requests * accepted : 0;
    return 2.0 * rows * static_cast<double>(row_bytes());
  }
  Row cells() const { return {item, model.name, int64_t{num_requests}, int64_t{accepted}, path}; }
};

std::vector<RemapCase> all_cases() {
  std::vector<RemapCase> cases;
  for (const Model& model : {kSmolLM2, kQwen, kLlama8B, kLlama70BTp8}) {
    for (const int num_requests : {1, 8, 64}) {
      for (const int accepted : {1, 2, 4, 8, 16}) {
        cases.push_back(
            {.item = "R1",
             .model = model,
             .num_requests = num_requests,
             .accepted = accepted,
             .quick = model.head_dim == 128 && model.num_layers == 32 && accepted == 8});
      }
    }
  }
  for (const char* path : {"first_child", "whole_block", "scattered"}) {
    for (const int num_requests : {1, 64}) {
      cases.push_back({.item = "R2",
                       .model = kLlama8B,
                       .num_requests = num_requests,
                       .accepted = 15,
                       .path = path,
                       .quick = num_requests == 1});
    }
  }
  return cases;
}

std::vector<int32_t> make_path(const RemapCase& c, Random& random) {
  std::vector<int32_t> path(c.accepted + 1);
  std::iota(path.begin(), path.end(), 0);
  if (c.path == "first_child") return path;
  // Nodes 2 and later, ascending: none is where it belongs.
  std::vector<int32_t> nodes(kNodes - 2);
  std::iota(nodes.begin(), nodes.end(), 2);
  for (int i = 0; i < c.accepted; ++i) {
    std::swap(nodes[i], nodes[i + random.below(static_cast<int>(nodes.size()) - i)]);
  }
  std::sort(nodes.begin(), nodes.begin() + c.accepted);
  std::copy_n(nodes.begin(), c.accepted, path.begin() + 1);
  return path;
}

// Requests of one call: `blocks` is a window of a table that spans the pools of all sets.
RemapBatch make_batch(const RemapCase& c, BlockTables blocks, Random& random) {
  std::vector<Parents> trees;
  Paths paths;
  for (int b = 0; b < c.num_requests; ++b) {
    trees.push_back(deep_tree(kNodes, 16, random.bits()));
    paths.push_back(make_path(c, random));
  }
  return RemapBatch(std::move(blocks), trees, std::vector<int32_t>(c.num_requests, kContextLen),
                    paths);
}

void measure_case(Sweep& sweep, const Budget& budget, const DeviceCeilings& ceilings,
                  const RemapCase& c) {
  // A call that re-points blocks does so once: its samples need enough calls to be long.
  const bool repoints = c.path == "whole_block";
  const int num_sets =
      std::max(c.moved_bytes() == 0 ? 1 : cold_sets(static_cast<int64_t>(c.moved_bytes())),
               repoints ? kFewestCalls : 1);
  const BlockTables all =
      shuffled_blocks(c.num_requests * num_sets, kContextLen + kNodes, c.block_size(), 5);
  const double needed = static_cast<double>(c.row_bytes()) * all.num_blocks * c.block_size();
  if (needed > kUsableShare * static_cast<double>(free_device_bytes())) {
    std::fprintf(stderr, "left out for lack of memory: %s %s, batch %d: %.1f GB\n", c.item.c_str(),
                 c.model.name, c.num_requests, 1e-9 * needed);
    return;
  }
  Mirror mirror(int64_t{16} << 20);
  std::vector<RemapPlane> planes;
  std::vector<DeviceMemory> pools;
  const int64_t head_bytes = int64_t{2} * c.model.head_dim;
  const int64_t row_bytes = head_bytes * c.model.num_kv_heads;
  for (int i = 0; i < 2 * c.model.num_layers; ++i) {
    pools.emplace_back(int64_t{all.num_blocks} * c.block_size() * row_bytes);
    planes.push_back({.data = static_cast<char*>(pools.back().data()),
                      .stride_block = c.block_size() * row_bytes,
                      .stride_row = row_bytes,
                      .stride_head = head_bytes,
                      .num_heads = c.model.num_kv_heads,
                      .head_bytes = static_cast<int>(head_bytes)});
  }
  Random random(3);
  std::vector<RemapKvParams> params;
  std::vector<int32_t*> first_tables;
  int32_t* workspace = nullptr;
  int32_t* const header = remap_header(mirror);
  const int64_t table_size = int64_t{c.num_requests} * all.max_blocks;
  for (int set = 0; set < num_sets; ++set) {
    BlockTables window = all;
    window.table.assign(all.table.begin() + set * table_size,
                        all.table.begin() + (set + 1) * table_size);
    RemapBatch batch = make_batch(c, std::move(window), random);
    RemapKvParams host = batch.params();
    host.num_planes = static_cast<int>(planes.size());
    params.push_back(params_on_device(mirror, host, planes.data()));
    first_tables.push_back(mirror.copy(batch.blocks.table));
    if (workspace == nullptr) workspace = remap_workspace(mirror, params.back());
    // A second call moves the same rows again, unless the first one re-pointed a block.
    cuda::remap_kv(params.back(), workspace, header, device_stream());
    wait_for_device();
    fetch(batch.moved, params.back().moved);
    const int64_t moved = std::accumulate(batch.moved.begin(), batch.moved.end(), int64_t{0});
    const bool all_moved =
        c.path == "scattered" ? moved == c.num_requests * c.accepted : moved == 0;
    if (!all_moved) throw std::runtime_error("remap_kv moved " + std::to_string(moved) + " rows");
  }
  const auto restore = [&] {
    for (int set = 0; set < num_sets; ++set) {
      copy_on_device(params[set].block_table, first_tables[set], 4 * table_size);
    }
  };
  const Timing timing = measure_replay(
      budget, repoints ? num_sets : calls_of(num_sets),
      [&](int call) {
        cuda::remap_kv(params[call % num_sets], workspace, header, device_stream());
      },
      repoints ? std::function<void()>(restore) : std::function<void()>());
  sweep.add(c.cells(), device_cells(timing, {.bytes = c.moved_bytes()}, ceilings, false));
}

void sweep_remap(Sweep& sweep) {
  const Budget budget = sweep.quick ? kQuickReplays : kFullReplays;
  const DeviceCeilings ceilings = measure_ceilings(budget);
  for (const RemapCase& c : all_cases()) {
    if ((!sweep.quick || c.quick) && sweep.wants(c.cells())) {
      measure_case(sweep, budget, ceilings, c);
    }
  }
}

const Program kProgram{
    .name = "micro_remap_cuda",
    .description =
        std::string(
            "remap_kv over all layers of a model in bf16, after a self-check against the CPU "
            "kernel:\na tree of 64 nodes, blocks of 16. path: scattered moves every accepted row, "
            "first_child\nnone, whole_block (blocks of 1) writes only the table.\n") +
        kDeviceColumnsHelp,
    .columns = device_columns({{.name = "item", .width = 4},
                               {.name = "model", .width = 14},
                               {.name = "batch", .width = 5},
                               {.name = "accepted", .width = 8},
                               {.name = "path", .width = 11}},
                              false),
    .check = check_device_remap,
    .sweep = sweep_remap,
    .items = {"R1", "R2"},
    .oracle = "the CPU kernel",
    .require = require_device};

}  // namespace
}  // namespace treeattn::micro

int main(int argc, char** argv) {
  return treeattn::micro::run_program(treeattn::micro::kProgram, argc, argv);
}
