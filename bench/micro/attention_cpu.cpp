// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "micro/attention_batch.h"
#include "micro/attention_call.h"
#include "micro/attention_check.h"
#include "micro/common/bandwidth.h"
#include "micro/common/isas.h"
#include "micro/common/peak.h"
#include "micro/common/program.h"

namespace treeattn::micro {
namespace {

constexpr int kBlockSize = 16;

constexpr AttentionShape kSmolLM2{
    .name = "smollm2", .num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64};
constexpr AttentionShape kLlama{
    .name = "llama3_8b", .num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};

enum class TreeKind { kDepth8, kChain };

struct AttentionCase {
  AttentionShape shape;
  DType dtype;
  int context_len;
  int num_nodes;
  TreeKind tree;
  cpu::Isa isa;
  int threads;

  Row cells() const {
    return {shape.name,
            dtype_name(dtype),
            int64_t{context_len},
            int64_t{num_nodes},
            tree == TreeKind::kChain ? "chain" : "depth8",
            cpu::isa_name(isa),
            int64_t{threads}};
  }
  auto data_key() const {
    return std::tuple(shape.num_qo_heads, dtype, context_len, num_nodes, tree);
  }
};

// Cases on the same data follow each other.
std::vector<AttentionCase> all_cases(bool quick) {
  std::vector<int> contexts{0, 512, 2048, 8192}, nodes{16, 64, 256};
  std::vector<cpu::Isa> isas = supported_isas();
  if (quick) {
    contexts = {0, 512};
    nodes = {64};
    isas = {isas.back()};
  }
  std::vector<AttentionCase> cases;
  for (const AttentionShape& shape : {kSmolLM2, kLlama}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int context_len : contexts) {
        for (const int num_nodes : nodes) {
          for (const TreeKind tree : {TreeKind::kDepth8, TreeKind::kChain}) {
            for (const cpu::Isa isa : isas) {
              for (const int threads : {1, 2}) {
                cases.push_back({.shape = shape,
                                 .dtype = dtype,
                                 .context_len = context_len,
                                 .num_nodes = num_nodes,
                                 .tree = tree,
                                 .isa = isa,
                                 .threads = threads});
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

// What this machine can do at most, measured once for each combination that is asked for.
class Ceilings {
 public:
  explicit Ceilings(Sweep& sweep) : sweep_(sweep) {}

  double flops_per_us(cpu::Isa isa, DType dtype, int threads) {
    const auto [it, is_new] = peaks_.try_emplace({isa, dtype, threads});
    if (is_new) {
      it->second = measure_peak(sweep_.workers, threads, sweep_.budget, isa, dtype);
    }
    return it->second;
  }

  double bytes_per_us(int threads) {
    const auto [it, is_new] = reads_.try_emplace(threads);
    if (is_new) it->second = read_bandwidth(sweep_.workers, threads, sweep_.budget);
    return it->second;
  }

 private:
  Sweep& sweep_;
  std::map<std::tuple<cpu::Isa, DType, int>, double> peaks_;
  std::map<int, double> reads_;
};

std::unique_ptr<AttentionBatch> make_batch(const AttentionCase& c) {
  const Parents tree =
      c.tree == TreeKind::kChain ? chain_tree(c.num_nodes) : deep_tree(c.num_nodes, 8, 1);
  return std::make_unique<AttentionBatch>(
      c.shape, c.dtype, shuffled_blocks(1, c.context_len + c.num_nodes, kBlockSize, 2),
      std::vector<Parents>{tree}, std::vector<int32_t>{c.context_len}, 3);
}

Row measure_case(Sweep& sweep, Ceilings& ceilings, const AttentionCase& c, AttentionBatch& batch) {
  use_isa(c.isa);
  const TreeAttentionParams params = batch.params();
  AttentionCall call(params, c.threads);
  const Timing timing = measure(c.threads, sweep.budget, [&] { call.run(sweep.workers); });
  const double peak = ceilings.flops_per_us(c.isa, c.dtype, c.threads);
  const double floor_us = std::max(batch.flops() / peak, static_cast<double>(batch.num_bytes()) /
                                                             ceilings.bytes_per_us(c.threads));
  return {timing.median_us,
          timing.p20_us,
          timing.p80_us,
          1e-3 * batch.flops() / timing.median_us,
          1e-3 * peak,
          floor_us,
          timing.median_us / floor_us};
}

void sweep_attention(Sweep& sweep) {
  Ceilings ceilings(sweep);
  std::unique_ptr<AttentionBatch> batch;
  const AttentionCase* batch_of = nullptr;
  const std::vector<AttentionCase> cases = all_cases(sweep.quick);
  for (const AttentionCase& c : cases) {
    if (!sweep.wants(c.cells())) continue;
    if (batch_of == nullptr || batch_of->data_key() != c.data_key()) batch = make_batch(c);
    batch_of = &c;
    sweep.add(c.cells(), measure_case(sweep, ceilings, c, *batch));
  }
}

const Program kProgram{
    .name = "micro_attention_cpu",
    .description =
        "tree_attention of one request and one layer, after a self-check against a scalar loop:\n"
        "blocks of 16 in shuffled order, read in place. 1 thread is timed by its CPU time, 2 by\n"
        "the wall clock, which other processes disturb.\n"
        "  us, p20_us, p80_us  time of a call: median, 20th and 80th percentile\n"
        "  gflops              operations on visible keys only, 10^9 per second\n"
        "  peak_gflops         multiply-adds in registers, same instruction set and threads, in "
        "this\n"
        "                      process; pairs of bf16 where the set multiplies them directly\n"
        "  floor_us            the larger of operations / peak and bytes / read bandwidth\n"
        "  over_floor          us / floor_us\n",
    .columns = {{.name = "model", .width = 9},
                {.name = "dtype", .width = 5},
                {.name = "ctx", .width = 4},
                {.name = "nodes", .width = 5},
                {.name = "tree", .width = 6},
                {.name = "isa", .width = 11},
                {.name = "threads", .width = 7},
                {.name = "us", .width = 8},
                {.name = "p20_us", .width = 8},
                {.name = "p80_us", .width = 8},
                {.name = "gflops", .width = 6},
                {.name = "peak_gflops", .width = 11},
                {.name = "floor_us", .width = 8},
                {.name = "over_floor", .width = 10}},
    .check = check_attention,
    .sweep = sweep_attention};

}  // namespace
}  // namespace treeattn::micro

int main(int argc, char** argv) {
  return treeattn::micro::run_program(treeattn::micro::kProgram, argc, argv);
}
