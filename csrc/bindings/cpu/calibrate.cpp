// SPDX-License-Identifier: Apache-2.0
#include "cpu/calibrate.h"

#include "bindings/cpu/ops.h"
#include "bindings/cpu/threads.h"

namespace treeattn::bindings {

void calibrate_flops(bool dots, int64_t rounds, Tensor flops) {
  Match match("_calibrate_flops");
  match(flops, "flops", {"num_threads"}, {ScalarType::Double});
  match.packed_from(flops, "flops", 0);
  const cpu::Calibration calibration = cpu::calibration();
  double* done = mutable_data<double>(flops);
  parallel_for(match["num_threads"], 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) done[i] = calibration.spend_flops(dots, rounds);
  });
}

void calibrate_read(Tensor data, Tensor sums) {
  Match match("_calibrate_read");
  match(data, "data", {"num_threads", "num_floats"}, {ScalarType::Float});
  match.packed_from(data, "data", 0);
  match(sums, "sums", {"num_threads"}, {ScalarType::Float});
  match.packed_from(sums, "sums", 0);
  const cpu::Calibration calibration = cpu::calibration();
  const float* from = const_data<float>(data);
  float* to = mutable_data<float>(sums);
  const int64_t count = match["num_floats"];
  parallel_for(match["num_threads"], 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = calibration.read(from + i * count, count);
  });
}

}  // namespace treeattn::bindings
