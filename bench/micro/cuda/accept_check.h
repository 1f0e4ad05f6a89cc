// SPDX-License-Identifier: Apache-2.0
// accept_path on the device, both ways, against the CPU kernel.
#pragma once

#include <cstdint>
#include <string>

#include "micro/accept_check.h"
#include "micro/cuda/accept.h"

namespace treeattn::micro {

inline void compare_accept(Check& check, const AcceptBatch& actual, const AcceptBatch& expected,
                           const std::string& name) {
  const auto at = [&](const char* what, size_t i) {
    return [=, &name] { return name + " " + what + "[" + std::to_string(i) + "]"; };
  };
  for (int b = 0; b < expected.num_requests; ++b) {
    check.equal(actual.status[b], expected.status[b], at("status", b));
    check.equal(actual.num_accepted[b], expected.num_accepted[b], at("num_accepted", b));
    check.equal(actual.next_tokens[b], expected.next_tokens[b], at("next_tokens", b));
  }
  for (size_t i = 0; i < expected.path.size(); ++i) {
    check.equal(actual.path[i], expected.path[i], at("path", i));
    check.equal(actual.emitted[i], expected.emitted[i], at("emitted", i));
    if (expected.path[i] < 0) continue;
    check.compare(actual.logprobs[i], expected.logprobs[i], 4e-6, at("logprobs", i));
  }
  check.end_case();
}

inline void check_device_accept(Check& check) {
  for_each_accept_case([&](AcceptCheckCase& test, const std::string& name) {
    AcceptBatch& batch = test.batch();
    call_accept_path(test.params());
    const AcceptBatch expected = batch;
    for (const bool all_rows : {false, true}) {
      Mirror mirror;
      const AcceptPathParams params = params_on_device(
          mirror, test.params(),
          mirror.copy(static_cast<const char*>(test.logits().data()), test.logits().num_bytes()),
          mirror.copy(test.uniforms()));
      int32_t* const workspace =
          all_rows ? mirror.room<int32_t>(cuda::accept_path_workspace_size(params)) : nullptr;
      cuda::accept_path(params, workspace, device_stream());
      wait_for_device();
      fetch_results(batch, params);
      compare_accept(check, batch, expected, name + (all_rows ? " all rows" : " walk"));
    }
  });
}

}  // namespace treeattn::micro
