// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

namespace treeattn::bindings {

// Carries what a worker throws first to the end of a parallel region: a thread has nobody to catch
// it, and torch would make another error of it. Arguments are checked before, but a worker's
// scratch may find no memory.
class FirstError {
 public:
  template <class F>
  void guard(const F& f) {
    try {
      f();
    } catch (...) {
      if (!caught_.test_and_set()) error_ = std::current_exception();
    }
  }
  // After the region.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic_flag caught_;
  std::exception_ptr error_;
};

// Runs f(begin, end) over [0, count) on torch's threads, at least `grain` items each.
template <class F>
void parallel_for(int64_t count, int64_t grain, const F& f) {
  if (count <= grain) {
    if (count > 0) f(int64_t{0}, count);
    return;
  }
  FirstError error;
  torch::stable::parallel_for(
      0, count, grain, [&](int64_t begin, int64_t end) { error.guard([&] { f(begin, end); }); });
  error.rethrow();
}

// Runs worker(next) on each of torch's threads, at most `count`; next() hands out 0 .. count-1,
// each once, and then `count`. For items of very different length.
template <class F>
void parallel_items(int64_t count, const F& worker) {
  std::atomic<int64_t> counter{0};
  const auto next = [&] { return std::min(count, counter.fetch_add(1)); };
  const int64_t threads = std::min<int64_t>(count, torch::stable::get_num_threads());
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) worker(next);
  });
}

}  // namespace treeattn::bindings
