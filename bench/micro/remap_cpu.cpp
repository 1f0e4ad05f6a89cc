// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "micro/common/bandwidth.h"
#include "micro/common/program.h"
#include "micro/remap_batch.h"
#include "micro/remap_check.h"

namespace treeattn::micro {
namespace {

constexpr int kNodes = 64;
constexpr int kContextLen = 100;
constexpr int kBlockSize = 16;

struct Model {
  const char* name;
  int num_layers;
  int num_kv_heads;
  int head_dim;
};

constexpr Model kSmolLM2{.name = "smollm2", .num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
constexpr Model kLlama{.name = "llama3_8b", .num_layers = 32, .num_kv_heads = 8, .head_dim = 128};

struct RemapCase {
  Model model;
  int num_requests;
  int accepted;
  int threads;

  Row cells() const {
    return {model.name, int64_t{num_requests}, int64_t{accepted}, int64_t{threads}};
  }
};

std::vector<RemapCase> all_cases(bool quick) {
  std::vector<int> lengths{1, 2, 4, 8, 16};
  std::vector<int> batches{1, 8};
  if (quick) lengths = {4, 16};
  std::vector<RemapCase> cases;
  for (const Model& model : {kSmolLM2, kLlama}) {
    for (const int num_requests : batches) {
      for (const int accepted : lengths) {
        for (const int threads : {1, 2}) {
          cases.push_back({.model = model,
                           .num_requests = num_requests,
                           .accepted = accepted,
                           .threads = threads});
        }
      }
    }
  }
  return cases;
}

// Nodes 2 and later, so that every accepted row has to move.
std::vector<int32_t> scattered_path(int accepted, Random& random) {
  std::vector<int32_t> nodes;
  for (int i = 2; i < kNodes; ++i) nodes.push_back(i);
  for (int i = 0; i < accepted; ++i) {
    std::swap(nodes[i], nodes[i + random.below(static_cast<int>(nodes.size()) - i)]);
  }
  nodes.resize(accepted);
  nodes.push_back(0);
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

RemapBatch make_batch(const RemapCase& c) {
  Random random(3);
  std::vector<Parents> trees;
  Paths paths;
  for (int b = 0; b < c.num_requests; ++b) {
    trees.push_back(deep_tree(kNodes, 16, random.bits()));
    paths.push_back(scattered_path(c.accepted, random));
  }
  RemapBatch batch(shuffled_blocks(c.num_requests, kContextLen + kNodes, kBlockSize, 5), trees,
                   std::vector<int32_t>(c.num_requests, kContextLen), paths);
  batch.add_pools(2 * c.model.num_layers, DType::kBFloat16, c.model.num_kv_heads, c.model.head_dim);
  return batch;
}

Row measure_case(Sweep& sweep, const RemapCase& c) {
  RemapBatch batch = make_batch(c);
  const RemapKvParams params = batch.params();
  const std::vector<int32_t> table = batch.blocks.table;
  const auto call = [&] { call_remap_kv(params, batch.row_bytes(), sweep.workers, c.threads); };
  // A second call moves the same rows again, unless the first one re-pointed a block.
  call();
  if (table != batch.blocks.table) throw std::runtime_error("the path holds a whole block");
  int64_t rows = 0;
  for (const int32_t moved : batch.moved) rows += moved;
  const int64_t bytes = rows * batch.row_bytes();
  const Timing timing = measure(c.threads, sweep.budget, call);
  const double floor_us = copy_us(sweep.workers, c.threads, sweep.budget, bytes);
  return {timing.median_us,
          timing.p20_us,
          timing.p80_us,
          rows,
          bytes,
          2e-3 * static_cast<double>(bytes) / timing.median_us,
          floor_us,
          timing.median_us / floor_us};
}

void sweep_remap(Sweep& sweep) {
  for (const RemapCase& c : all_cases(sweep.quick)) {
    if (sweep.wants(c.cells())) sweep.add(c.cells(), measure_case(sweep, c));
  }
}

const Program kProgram{
    .name = "micro_remap_cpu",
    .description =
        "remap_kv over all layers of a model, after a self-check against a scalar loop: bf16\n"
        "pools, blocks of 16, a tree of 64 nodes, a path of which every accepted row moves.\n"
        "  us, p20_us, p80_us  time of a call: median, 20th and 80th percentile\n"
        "  rows                rows moved per pool\n"
        "  bytes, gbs          bytes moved in all pools; read and written per second\n"
        "  copy_us             one contiguous copy of as many bytes, as warm, on as many threads\n"
        "  over_floor          us / copy_us\n",
    .columns = {{.name = "model", .width = 9},
                {.name = "batch", .width = 5},
                {.name = "accepted", .width = 8},
                {.name = "threads", .width = 7},
                {.name = "us", .width = 8},
                {.name = "p20_us", .width = 8},
                {.name = "p80_us", .width = 8},
                {.name = "rows", .width = 4},
                {.name = "bytes", .width = 9},
                {.name = "gbs", .width = 6},
                {.name = "copy_us", .width = 8},
                {.name = "over_floor", .width = 10}},
    .check = check_remap,
    .sweep = sweep_remap};

}  // namespace
}  // namespace treeattn::micro

int main(int argc, char** argv) {
  return treeattn::micro::run_program(treeattn::micro::kProgram, argc, argv);
}
