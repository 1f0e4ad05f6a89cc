// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/accept_path/config.h"
#include "micro/common/program.h"
#include "micro/common/random.h"
#include "micro/cuda/accept.h"
#include "micro/cuda/accept_check.h"
#include "micro/cuda/timing.h"

namespace treeattn::micro {
namespace {

constexpr double kUsableShare = 0.9;  // of the free memory
constexpr int kMaxDepth = 16;         // of all trees: what a caller would give

struct AcceptCase {
  std::string item;
  DType dtype;
  int vocab_size;
  int num_requests;
  int num_nodes;
  int accepted;
  std::string rule = "greedy";
  bool lazy = false;  // the walk, whatever the cost rule says
  bool quick = false;

  AcceptSettings settings() const {
    AcceptSettings settings{.rule = rule == "greedy" ? AcceptRule::kGreedy : AcceptRule::kTarget};
    if (rule == "target_top_k") settings.top_k = 50;
    if (rule == "target_top_p") settings.top_p = 0.9f;
    return settings;
  }
  int64_t row_bytes() const { return int64_t{vocab_size} * element_size(dtype); }
  int total_nodes() const { return num_requests * num_nodes; }
  bool reads_all() const {
    return !lazy && cuda::reads_all_rows(total_nodes(), row_bytes(), kMaxDepth);
  }
  int rows_read() const { return reads_all() ? total_nodes() : num_requests * (accepted + 1); }
  int num_sets() const { return cold_sets(rows_read() * row_bytes()); }
  // A set's rows begin rows_read() after those of the one before.
  int64_t num_rows() const { return total_nodes() + int64_t{num_sets() - 1} * rows_read(); }

  Row cells() const {
    return {item,
            rule,
            dtype_name(dtype),
            int64_t{vocab_size},
            int64_t{num_requests},
            int64_t{num_nodes},
            int64_t{accepted},
            reads_all() ? "all_rows" : "walk"};
  }
};

constexpr int kVocabSizes[] = {32'000, 49'152, 128'256, 151'936};

std::vector<AcceptCase> all_cases() {
  std::vector<AcceptCase> cases;
  for (const int vocab_size : kVocabSizes) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      const bool is_main = vocab_size == 128'256 && dtype == DType::kBFloat16;
      AcceptCase c{.item = "P1",
                   .dtype = dtype,
                   .vocab_size = vocab_size,
                   .num_requests = 1,
                   .num_nodes = 64,
                   .accepted = 4};
      for (const int num_requests : {1, 8, 64}) {
        for (const int num_nodes : {16, 64, 256, 1024}) {
          c.num_requests = num_requests;
          c.num_nodes = num_nodes;
          c.quick = num_nodes == 64 && (is_main || vocab_size == 151'936) && num_requests != 8;
          cases.push_back(c);
        }
      }
      c.item = "P2";
      c.num_nodes = 64;
      for (const char* rule : {"target", "target_top_k", "target_top_p"}) {
        for (const int num_requests : {1, 64}) {
          c.rule = rule;
          c.num_requests = num_requests;
          c.quick = is_main;
          cases.push_back(c);
        }
      }
      if (!is_main) continue;
      c = {.item = "P3",
           .dtype = dtype,
           .vocab_size = vocab_size,
           .num_requests = 1,
           .num_nodes = 64,
           .accepted = 0,
           .lazy = true};
      for (const int accepted : {1, 2, 4, 8, 16}) {
        c.accepted = accepted;
        c.quick = accepted == 1 || accepted == 16;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// Rows as a language model makes them, and a draw for each.
struct DeviceLogits {
  DType dtype;
  int vocab_size;
  int64_t num_rows;
  DeviceMemory elements;
  std::vector<float> draws;  // [num_rows, 2]
  DeviceMemory uniforms;     // the same

  DeviceLogits(DType type, int vocab, int64_t rows)
      : dtype(type),
        vocab_size(vocab),
        num_rows(rows),
        elements(rows * vocab * element_size(type)),
        uniforms(rows * 2 * static_cast<int64_t>(sizeof(float))) {
    fill_normal(elements.data(), type, rows * vocab, 2.0f, 7, device_stream());
    add_likely_tokens(elements.data(), type, rows, vocab, device_stream());
    Random random(7);
    for (int64_t i = 0; i < 2 * rows; ++i) draws.push_back(static_cast<float>(random.uniform()));
    copy_to_device(uniforms.data(), draws.data(), static_cast<int64_t>(4 * draws.size()));
  }

  const void* row(int64_t i) const {
    return static_cast<const char*>(elements.data()) + i * vocab_size * element_size(dtype);
  }
  const float* uniform(int64_t i) const {
    return static_cast<const float*>(uniforms.data()) + 2 * i;
  }

  // The token that the rule takes from each row, as the op says it of trees of one node.
  std::vector<int32_t> row_tokens(const AcceptSettings& settings) const {
    const std::vector<Parents> roots(num_rows, chain_tree(1));
    AcceptBatch batch(settings, roots, std::vector<int32_t>(num_rows, 0));
    Mirror mirror;
    const Elements none(dtype, 0);
    const AcceptPathParams params =
        params_on_device(mirror, batch.params(none, vocab_size, {}), row(0), uniform(0));
    cuda::accept_path(params, nullptr, device_stream());
    wait_for_device();
    fetch_results(batch, params);
    return {batch.next_tokens.begin(), batch.next_tokens.end()};
  }
};

// Trees in which every walk takes exactly `accepted` steps. A walk goes over rows that no set
// before visited, as long as there are some. `visited`: of all rows of the logits; `first`: the
// set's first row.
AcceptBatch trees_with_walks(const AcceptCase& c, const std::vector<int32_t>& row_tokens,
                             int64_t first, std::vector<bool>& visited, Random& random) {
  std::vector<Parents> trees;
  std::vector<int32_t> tokens;
  for (int b = 0; b < c.num_requests; ++b) {
    const int64_t root = first + int64_t{b} * c.num_nodes;
    std::vector<int> order;
    for (int i = 1; i < c.num_nodes; ++i) order.push_back(i);
    for (int i = static_cast<int>(order.size()) - 1; i > 0; --i) {
      std::swap(order[i], order[random.below(i + 1)]);
    }
    std::stable_partition(order.begin(), order.end(), [&](int i) { return !visited[root + i]; });
    std::vector<bool> on_path(c.num_nodes);
    for (int i = 0; i < c.accepted; ++i) visited[root + order[i]] = on_path[order[i]] = true;
    visited[root] = true;
    Parents parents{-1};
    std::vector<int> depths{0};
    tokens.push_back(0);
    int last = 0;
    for (int i = 1; i < c.num_nodes; ++i) {
      int parent = last;
      while (!on_path[i] && depths[parent = random.below(i)] == kMaxDepth) continue;
      const int wrong = on_path[i] ? 0 : 1 + random.below(c.vocab_size - 1);
      parents.push_back(parent);
      depths.push_back(depths[parent] + 1);
      tokens.push_back((row_tokens[root + parent] + wrong) % c.vocab_size);
      if (on_path[i]) last = i;
    }
    trees.push_back(std::move(parents));
  }
  return AcceptBatch(c.settings(), trees, std::move(tokens), kMaxDepth);
}

Row measure_case(const AcceptCase& c, const Budget& budget, const DeviceCeilings& ceilings,
                 const DeviceLogits& logits, const std::vector<int32_t>& row_tokens) {
  Random random(11);
  std::vector<bool> visited(logits.num_rows);
  Mirror mirror(int64_t{16} << 20);
  std::vector<AcceptPathParams> params;
  const Elements none(c.dtype, 0);
  int32_t* const workspace =
      c.lazy ? nullptr : mirror.room<int32_t>(int64_t{cuda::kStepInts} * c.total_nodes());
  for (int set = 0; set < c.num_sets(); ++set) {
    const int64_t first = int64_t{set} * c.rows_read();
    AcceptBatch batch = trees_with_walks(c, row_tokens, first, visited, random);
    params.push_back(params_on_device(mirror, batch.params(none, c.vocab_size, {}),
                                      logits.row(first), logits.uniform(first)));
    cuda::accept_path(params.back(), workspace, device_stream());
    wait_for_device();
    fetch_results(batch, params.back());
    for (const int32_t accepted : batch.num_accepted) {
      if (accepted != c.accepted) throw std::runtime_error("a walk went astray");
    }
  }
  const int num_sets = c.num_sets();
  const Timing timing = measure_replay(budget, calls_of(num_sets), [&](int call) {
    cuda::accept_path(params[call % num_sets], workspace, device_stream());
  });
  const auto bytes = static_cast<double>(c.rows_read() * c.row_bytes());
  return device_cells(timing, {.bytes = bytes}, ceilings, false);
}

void sweep_accept(Sweep& sweep) {
  const Budget budget = sweep.quick ? kQuickReplays : kFullReplays;
  const DeviceCeilings ceilings = measure_ceilings(budget);
  std::vector<AcceptCase> cases;
  for (const AcceptCase& c : all_cases()) {
    if ((!sweep.quick || c.quick) && sweep.wants(c.cells())) cases.push_back(c);
  }
  // Cases that share logits follow each other; the largest of them says how many rows.
  for (auto group = cases.begin(); group != cases.end();) {
    const auto end = std::find_if(group, cases.end(), [&](const AcceptCase& c) {
      return c.dtype != group->dtype || c.vocab_size != group->vocab_size;
    });
    const double usable = kUsableShare * static_cast<double>(free_device_bytes());
    int64_t num_rows = 0;
    const auto fits = [&](const AcceptCase& c) {
      return static_cast<double>(c.num_rows()) * static_cast<double>(c.row_bytes()) < usable;
    };
    for (auto c = group; c != end; ++c) {
      if (fits(*c)) num_rows = std::max(num_rows, c->num_rows());
    }
    const DeviceLogits logits(group->dtype, group->vocab_size, num_rows);
    std::string tokens_of;
    std::vector<int32_t> tokens;
    for (; group != end; ++group) {
      if (group->num_rows() > num_rows) {
        std::fprintf(stderr, "left out for lack of memory: %s vocab %d batch %d nodes %d\n",
                     group->item.c_str(), group->vocab_size, group->num_requests, group->num_nodes);
        continue;
      }
      if (tokens_of != group->rule) tokens = logits.row_tokens(group->settings());
      tokens_of = group->rule;
      sweep.add(group->cells(), measure_case(*group, budget, ceilings, logits, tokens));
    }
  }
}

const Program kProgram{
    .name = "micro_accept_cuda",
    .description =
        std::string(
            "accept_path, after a self-check against the CPU kernel. Every walk accepts `accepted` "
            "nodes.\nway: walk reads the rows of the walk one after the other, all_rows reads all "
            "of them at\nonce, as the op's cost rule chooses; `bytes` are those of that way. P3 "
            "always walks.\ntarget_top_k is rule target with top_k 50, target_top_p with top_p "
            "0.9.\n") +
        kDeviceColumnsHelp,
    .columns = device_columns({{.name = "item", .width = 4},
                               {.name = "rule", .width = 12},
                               {.name = "dtype", .width = 5},
                               {.name = "vocab", .width = 6},
                               {.name = "batch", .width = 5},
                               {.name = "nodes", .width = 5},
                               {.name = "accepted", .width = 8},
                               {.name = "way", .width = 8}},
                              false),
    .check = check_device_accept,
    .sweep = sweep_accept,
    .items = {"P1", "P2", "P3"},
    .oracle = "the CPU kernel",
    .require = require_device};

}  // namespace
}  // namespace treeattn::micro

int main(int argc, char** argv) {
  return treeattn::micro::run_program(treeattn::micro::kProgram, argc, argv);
}
