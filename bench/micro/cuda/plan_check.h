// SPDX-License-Identifier: Apache-2.0
// plan_tree on the device against the CPU's, value by value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "micro/common/check.h"
#include "micro/common/draft_trees.h"
#include "micro/cuda/plan.h"

namespace treeattn::micro {

template <class T>
void compare_all(Check& check, const std::vector<T>& actual, const std::vector<T>& expected,
                 const std::string& name) {
  for (size_t i = 0; i < expected.size(); ++i) {
    check.equal(actual[i], expected[i], [&] { return name + "[" + std::to_string(i) + "]"; });
  }
}

inline void compare_plan(Check& check, const Plan& expected, const DevicePlan& plan,
                         const std::string& name) {
  Plan actual = expected;
  fetch(actual.depths, plan.params.depths);
  fetch(actual.positions, plan.params.positions);
  fetch(actual.slot_mapping, plan.params.slot_mapping);
  fetch(actual.ancestors, plan.params.ancestors);
  fetch(actual.order, plan.params.order);
  fetch(actual.status, plan.params.status);
  compare_all(check, actual.depths, expected.depths, name + " depths");
  compare_all(check, actual.positions, expected.positions, name + " positions");
  compare_all(check, actual.slot_mapping, expected.slot_mapping, name + " slot_mapping");
  compare_all(check, actual.ancestors, expected.ancestors, name + " ancestors");
  compare_all(check, actual.order, expected.order, name + " order");
  compare_all(check, actual.status, expected.status, name + " status");
  check.end_case();
}

inline void check_plan(Check& check) {
  const std::vector<std::vector<std::string>> batches{
      {"chain-1"}, {"eagle-60", "star-33", "chain-65", "d4-20"}, {"dd-1024", "seq-256"}};
  for (const std::vector<std::string>& names : batches) {
    for (const int block_size : {1, 16}) {
      std::vector<Parents> trees;
      std::vector<int32_t> context_lens;
      std::string label = "block_size " + std::to_string(block_size);
      for (const std::string& name : names) {
        trees.push_back(named_tree(name));
        context_lens.push_back(static_cast<int32_t>(37 * context_lens.size()));
        label += " " + name;
      }
      const BlockTables blocks =
          shuffled_blocks(static_cast<int>(trees.size()), 1200, block_size, 1);
      const Plan expected = make_plan(trees, context_lens, blocks);
      Mirror mirror;
      const DevicePlan plan(mirror, expected, blocks, 8, 2);
      plan.run();
      wait_for_device();
      compare_plan(check, expected, plan, label);
    }
  }
}

}  // namespace treeattn::micro
