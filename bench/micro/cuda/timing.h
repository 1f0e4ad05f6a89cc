// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "micro/common/table.h"
#include "micro/common/timing.h"
#include "micro/cuda/device.h"
#include "micro/cuda/kernels.h"
#include "micro/cuda/mirror.h"

namespace treeattn::micro {

constexpr Budget kFullReplays{.sample_us = 2000, .total_us = 40'000, .min_samples = 9};
constexpr Budget kQuickReplays{.sample_us = 1000, .total_us = 8'000, .min_samples = 5};

// A graph of fewer calls than this is timed with its own launch.
constexpr int kFewestCalls = 16;
constexpr int kMostSets = 256;

// How many sets of data the calls must take turns over so that none finds its own in L2: together
// they have four times its size.
inline int cold_sets(int64_t bytes_of_a_call) {
  const int64_t sets = 1 + 4 * device().l2_bytes / std::max<int64_t>(1, bytes_of_a_call);
  return static_cast<int>(std::min<int64_t>(sets, kMostSets));
}

// Calls that a graph records: whole rounds over the sets.
inline int calls_of(int num_sets) { return num_sets * ((kFewestCalls + num_sets - 1) / num_sets); }

// Times call(0) .. call(num_calls - 1), replayed as one graph; per call. `prepare` runs before each
// sample, which then replays once, and is not timed.
inline Timing measure_replay(const Budget& budget, int num_calls,
                             const std::function<void(int)>& call,
                             const std::function<void()>& prepare = {}) {
  call(0);  // not yet recorded: the first launch of a kernel loads it
  wait_for_device();
  if (prepare) prepare();
  Replay replay(num_calls, call);
  const auto sample = [&](int times) {
    if (prepare) prepare();
    return replay.run_us(times);
  };
  sample(1);
  int times = 1;
  if (!prepare) {
    const double once = sample(1);
    times = static_cast<int>(std::clamp(budget.sample_us / std::max(once, 1.0), 1.0, 1000.0));
  }
  std::vector<double> samples;
  double total = 0;
  while (total < budget.total_us || static_cast<int>(samples.size()) < budget.min_samples) {
    const double us = sample(times);
    samples.push_back(us / times / num_calls);
    total += us;
    if (us > budget.total_us && static_cast<int>(samples.size()) >= kFewestSamples) break;
  }
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&samples](double q) {
    return samples[static_cast<size_t>(q * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {.median_us = quantile(0.5), .p20_us = quantile(0.2), .p80_us = quantile(0.8)};
}

// What this machine can do at most, measured in this process.
struct DeviceCeilings {
  double launch_us;     // a kernel that does nothing, in a graph
  double bytes_per_us;  // read and written, by a copy far larger than L2
  double flops_per_us;  // bf16 mma.sync from registers, the instruction that the kernels use
};

constexpr double kMmaUs = 200;  // launch and first products are nothing beside this

inline DeviceCeilings measure_ceilings(const Budget& budget) {
  const int num_sms = device().num_sms;
  const cudaStream_t stream = device_stream();
  const Timing nothing = measure_replay(budget, 64, [&](int) { launch_nothing(stream); });
  const int64_t size = std::max<int64_t>(1 << 20, 10 * device().l2_bytes) / 16 * 16;
  const DeviceMemory from(size), to(size);
  set_device_bytes(from.data(), 1, size);
  const Timing by_kernel = measure_replay(
      budget, 2, [&](int) { copy_bytes(to.data(), from.data(), size, num_sms, stream); });
  const Timing by_driver =
      measure_replay(budget, 2, [&](int) { copy_on_device(to.data(), from.data(), size); });
  const DeviceMemory sums(sizeof(float));
  Timing mma{};
  int rounds = 1;
  for (; mma.p20_us < kMmaUs; rounds *= mma.p20_us < kMmaUs ? 4 : 1) {
    mma = measure_replay(budget, 2, [&](int) {
      spend_mma(static_cast<float*>(sums.data()), rounds, num_sms, stream);
    });
  }
  return {.launch_us = nothing.p20_us,
          .bytes_per_us =
              2.0 * static_cast<double>(size) / std::min(by_kernel.p20_us, by_driver.p20_us),
          .flops_per_us = spent_flops(rounds, num_sms) / mma.p20_us};
}

// What must be done at least, for the columns of device_columns().
struct Work {
  double bytes;
  double flops = 0;
};

inline std::vector<Column> device_columns(std::vector<Column> columns, bool multiplies) {
  for (const Column& column : std::vector<Column>{{.name = "us", .width = 8},
                                                  {.name = "p20_us", .width = 8},
                                                  {.name = "p80_us", .width = 8},
                                                  {.name = "bytes", .width = 11},
                                                  {.name = "floor_us", .width = 8},
                                                  {.name = "bound", .width = 6},
                                                  {.name = "over_floor", .width = 10},
                                                  {.name = "gbs", .width = 6},
                                                  {.name = "copy_gbs", .width = 8},
                                                  {.name = "gbs_pct", .width = 7},
                                                  {.name = "launch_us", .width = 9}}) {
    columns.push_back(column);
  }
  if (multiplies) {
    for (const char* name : {"gflop", "tflops", "mma_tflops", "mma_pct"}) {
      columns.push_back({.name = name, .width = 7});
    }
  }
  return columns;
}

constexpr const char* kDeviceColumnsHelp =
    "  us, p20_us, p80_us  time of a call: median, 20th and 80th percentile of graph replays; the\n"
    "                      calls take turns over enough data to exceed four times L2\n"
    "  bytes               that must move at least\n"
    "  floor_us, bound     the largest of bytes / copy_gbs, operations / mma_tflops and launch_us\n"
    "  over_floor          us / floor_us\n"
    "  gbs, gbs_pct        bytes / us, 10^9 per second, and its share of copy_gbs\n"
    "  copy_gbs            read and written by a large copy in this process\n"
    "  launch_us           a kernel that does nothing, as one of many in a graph\n";

inline Row device_cells(const Timing& timing, const Work& work, const DeviceCeilings& ceilings,
                        bool multiplies) {
  const double memory_us = work.bytes / ceilings.bytes_per_us;
  const double mma_us = work.flops / ceilings.flops_per_us;
  const double floor_us = std::max({memory_us, mma_us, ceilings.launch_us});
  const char* const bound = floor_us == ceilings.launch_us ? "launch"
                            : floor_us == memory_us        ? "bytes"
                                                           : "mma";
  Row row{timing.median_us,
          timing.p20_us,
          timing.p80_us,
          static_cast<int64_t>(work.bytes),
          floor_us,
          bound,
          timing.median_us / floor_us,
          1e-3 * work.bytes / timing.median_us,
          1e-3 * ceilings.bytes_per_us,
          100 * memory_us / timing.median_us,
          ceilings.launch_us};
  if (multiplies) {
    for (const double cell : {1e-9 * work.flops, 1e-6 * work.flops / timing.median_us,
                              1e-6 * ceilings.flops_per_us, 100 * mma_us / timing.median_us}) {
      row.emplace_back(cell);
    }
  }
  return row;
}

}  // namespace treeattn::micro
