// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <vector>

namespace treeattn::micro {

// Microseconds. One thread is timed by its own CPU time, which other processes do not add to; two
// by the wall clock.
inline double now_us(int threads) {
  if (threads == 1) {
    std::timespec t;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
  }
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(since).count();
}

struct Budget {
  double sample_us;  // a sample repeats the call until it lasts this long
  double total_us;   // samples are taken until they add up to this ...
  int min_samples;   // ... and are this many; kFewestSamples if a call exceeds total_us
};

constexpr int kFewestSamples = 3;

constexpr Budget kFullBudget{.sample_us = 1000, .total_us = 100'000, .min_samples = 7};
constexpr Budget kQuickBudget{.sample_us = 500, .total_us = 10'000, .min_samples = 3};

struct Timing {
  double median_us, p20_us, p80_us;  // of one call
};

// Times call() on `threads` threads; the first call warms up and is not counted.
template <class F>
Timing measure(int threads, const Budget& budget, F&& call) {
  const auto time_calls = [&](int count) {
    const double start = now_us(threads);
    for (int i = 0; i < count; ++i) call();
    return now_us(threads) - start;
  };
  const double first = time_calls(1);
  int calls = 1;
  if (first < 2 * budget.sample_us) {
    while (time_calls(calls) < budget.sample_us && calls < 1 << 20) calls *= 2;
  }
  const int min_samples = first < budget.total_us ? budget.min_samples : kFewestSamples;
  std::vector<double> samples;
  double total = 0;
  while (total < budget.total_us || static_cast<int>(samples.size()) < min_samples) {
    const double sample = time_calls(calls);
    samples.push_back(sample / calls);
    total += sample;
  }
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&samples](double q) {
    return samples[static_cast<size_t>(q * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {.median_us = quantile(0.5), .p20_us = quantile(0.2), .p80_us = quantile(0.8)};
}

}  // namespace treeattn::micro
