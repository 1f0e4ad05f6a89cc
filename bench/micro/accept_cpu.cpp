// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "micro/accept_batch.h"
#include "micro/accept_check.h"
#include "micro/common/bandwidth.h"
#include "micro/common/isas.h"
#include "micro/common/program.h"

namespace treeattn::micro {
namespace {

constexpr AcceptSettings kGreedySettings{};
constexpr AcceptSettings kTopPSettings{.rule = AcceptRule::kTarget, .top_p = 0.9f};

struct AcceptCase {
  AcceptRule rule;
  DType dtype;
  int vocab_size;
  cpu::Isa isa;
  int num_nodes;
  int accepted;

  Row cells() const {
    return {rule == AcceptRule::kGreedy ? "greedy" : "target_top_p",
            dtype_name(dtype),
            int64_t{vocab_size},
            cpu::isa_name(isa),
            int64_t{num_nodes},
            int64_t{accepted}};
  }
  const AcceptSettings& settings() const {
    return rule == AcceptRule::kGreedy ? kGreedySettings : kTopPSettings;
  }
};

// Cases that share logits, and then those that share what each row says, follow each other.
std::vector<AcceptCase> all_cases(bool quick) {
  std::vector<int> vocab_sizes{32'000, 49'152, 128'256, 151'936}, nodes{16, 64, 256};
  std::vector<int> lengths{1, 4, 12};
  std::vector<cpu::Isa> isas = supported_isas();
  if (quick) {
    vocab_sizes = {49'152};
    nodes = {64};
    lengths = {1, 12};
    isas = {isas.back()};
  }
  std::vector<AcceptCase> cases;
  for (const int vocab_size : vocab_sizes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const AcceptRule rule : {AcceptRule::kGreedy, AcceptRule::kTarget}) {
        for (const cpu::Isa isa : isas) {
          for (const int num_nodes : nodes) {
            for (const int accepted : lengths) {
              cases.push_back({.rule = rule,
                               .dtype = dtype,
                               .vocab_size = vocab_size,
                               .isa = isa,
                               .num_nodes = num_nodes,
                               .accepted = accepted});
            }
          }
        }
      }
    }
  }
  return cases;
}

// Rows as a language model makes them: some likely tokens above a noisy floor.
struct Logits {
  DType dtype;
  int vocab_size;
  int num_rows;
  Elements elements;
  std::vector<float> uniforms;  // [num_rows, 2]

  Logits(DType type, int vocab, int rows)
      : dtype(type), vocab_size(vocab), num_rows(rows), elements(type, int64_t{rows} * vocab) {
    constexpr int kLikely = 64;
    Random random(7);
    for (int64_t i = 0; i < elements.size(); ++i) elements.set(i, 2 * random.normal());
    for (int row = 0; row < rows; ++row) {
      for (int rank = 1; rank <= kLikely; ++rank) {
        const float height = 16 - 2 * std::log(static_cast<float>(rank));
        elements.set(int64_t{row} * vocab + random.below(vocab), height);
      }
      uniforms.push_back(0);
      uniforms.push_back(static_cast<float>(random.uniform()));
    }
  }

  // The token that the rule takes from each row, as the op says it of trees of one node.
  std::vector<int32_t> row_tokens(const AcceptSettings& settings) const {
    const std::vector<Parents> roots(num_rows, chain_tree(1));
    AcceptBatch batch(settings, roots, std::vector<int32_t>(num_rows, 0));
    call_accept_path(batch.params(elements, vocab_size, uniforms));
    return {batch.next_tokens.begin(), batch.next_tokens.end()};
  }
};

// A tree in which the walk takes exactly `accepted` steps, over rows chosen at random.
AcceptBatch tree_with_walk(const AcceptCase& c, const std::vector<int32_t>& row_tokens,
                           Random& random) {
  std::vector<int> path;
  for (int i = 1; i < c.num_nodes; ++i) path.push_back(i);
  for (int i = 0; i < c.accepted; ++i) {
    std::swap(path[i], path[i + random.below(static_cast<int>(path.size()) - i)]);
  }
  path.resize(c.accepted);
  std::sort(path.begin(), path.end());
  Parents parents{-1};
  std::vector<int32_t> tokens{0};
  auto next = path.begin();
  int last = 0;
  for (int i = 1; i < c.num_nodes; ++i) {
    const bool on_path = next != path.end() && *next == i;
    const int parent = on_path ? last : random.below(i);
    const int wrong = 1 + random.below(c.vocab_size - 1);
    parents.push_back(parent);
    tokens.push_back((row_tokens[parent] + (on_path ? 0 : wrong)) % c.vocab_size);
    if (!on_path) continue;
    last = i;
    ++next;
  }
  return AcceptBatch(c.settings(), {parents}, std::move(tokens));
}

Row measure_case(Sweep& sweep, const AcceptCase& c, const Logits& logits,
                 const std::vector<int32_t>& row_tokens, double read_rate) {
  constexpr int kTrees = 16;  // in turn: a step finds its logits where the forward pass left them
  Random random(11);
  std::vector<AcceptBatch> trees;
  std::vector<AcceptPathParams> params;
  for (int i = 0; i < kTrees; ++i) trees.push_back(tree_with_walk(c, row_tokens, random));
  for (AcceptBatch& tree : trees) {
    params.push_back(tree.params(logits.elements, c.vocab_size, logits.uniforms));
    call_accept_path(params.back());
    if (tree.num_accepted[0] != c.accepted) throw std::runtime_error("a walk went astray");
  }
  int turn = 0;
  const Timing timing =
      measure(1, sweep.budget, [&] { call_accept_path(params[turn++ % kTrees]); });
  const int64_t bytes = int64_t{c.accepted + 1} * c.vocab_size * element_size(c.dtype);
  const double rate = static_cast<double>(bytes) / timing.median_us;
  return {timing.median_us, timing.p20_us,   timing.p80_us,   bytes,
          rate / 1e3,       read_rate / 1e3, read_rate / rate};
}

void sweep_accept(Sweep& sweep) {
  std::optional<Logits> logits;
  std::vector<int32_t> row_tokens;
  const AcceptCase* tokens_of = nullptr;
  double read_rate = 0;
  const std::vector<AcceptCase> cases = all_cases(sweep.quick);
  const int num_rows =
      std::max_element(cases.begin(), cases.end(), [](const AcceptCase& a, const AcceptCase& b) {
        return a.num_nodes < b.num_nodes;
      })->num_nodes;
  for (const AcceptCase& c : cases) {
    if (!sweep.wants(c.cells())) continue;
    use_isa(c.isa);
    if (read_rate == 0) read_rate = read_bandwidth(sweep.workers, 1, sweep.budget);
    const bool same_logits =
        logits && tokens_of->dtype == c.dtype && tokens_of->vocab_size == c.vocab_size;
    if (!same_logits) {
      logits.reset();  // before the next ones take their place
      logits.emplace(c.dtype, c.vocab_size, num_rows);
    }
    if (!same_logits || tokens_of->rule != c.rule || tokens_of->isa != c.isa) {
      row_tokens = logits->row_tokens(c.settings());
    }
    tokens_of = &c;
    sweep.add(c.cells(), measure_case(sweep, c, *logits, row_tokens, read_rate));
  }
}

const Program kProgram{
    .name = "micro_accept_cpu",
    .description =
        "accept_path on one request and one thread, after a self-check against a scalar loop.\n"
        "Only the rows of the walk are read: accepted + 1 of them. Calls take turns over 16 trees\n"
        "on the same logits. target_top_p is rule target with top_p 0.9.\n"
        "  us, p20_us, p80_us  time of a call: median, 20th and 80th percentile\n"
        "  bytes, gbs          logits on the walk, and the rate at which they were read\n"
        "  read_gbs            plain read of a buffer no cache holds, in this process\n"
        "  over_floor          read_gbs / gbs: below 1 where the cache holds the logits\n",
    .columns = {{.name = "rule", .width = 12},
                {.name = "dtype", .width = 5},
                {.name = "vocab", .width = 6},
                {.name = "isa", .width = 11},
                {.name = "nodes", .width = 5},
                {.name = "accepted", .width = 8},
                {.name = "us", .width = 8},
                {.name = "p20_us", .width = 8},
                {.name = "p80_us", .width = 8},
                {.name = "bytes", .width = 9},
                {.name = "gbs", .width = 6},
                {.name = "read_gbs", .width = 8},
                {.name = "over_floor", .width = 10}},
    .check = check_accept,
    .sweep = sweep_accept};

}  // namespace
}  // namespace treeattn::micro

int main(int argc, char** argv) {
  return treeattn::micro::run_program(treeattn::micro::kProgram, argc, argv);
}
