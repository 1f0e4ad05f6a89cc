// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

namespace treeattn::micro {

// Hands out 0 .. count-1, each once, and then `count`.
class Items {
 public:
  explicit Items(int64_t count) : count_(count) {}
  int64_t next() { return std::min(count_, next_.fetch_add(1, std::memory_order_relaxed)); }

 private:
  int64_t count_;
  std::atomic<int64_t> next_{0};
};

// The calling thread and one more, which is started once and sleeps when it has had nothing to do
// for a while.
class Workers {
 public:
  using Job = std::function<void(int thread)>;

  Workers() : helper_([this] { help(); }) {}
  ~Workers() {
    stopping_ = true;
    wake();
    helper_.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Runs the job on 1 or 2 threads and returns when all are through. It must not throw.
  void run(int threads, const Job& job) {
    if (threads == 1) return job(0);
    job_ = &job;
    busy_.store(true, std::memory_order_relaxed);
    wake();
    job(0);
    while (busy_.load(std::memory_order_acquire)) std::this_thread::yield();
  }

 private:
  static constexpr int kPatience = 2000;  // looks before it sleeps: longer than between two calls

  void wake() {
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_one();
  }

  void help() {
    for (uint32_t seen = 0;; ++seen) {
      for (int i = 0; i < kPatience && calls_.load(std::memory_order_acquire) == seen; ++i) {
        std::this_thread::yield();
      }
      calls_.wait(seen, std::memory_order_acquire);
      if (stopping_) return;
      (*job_)(1);
      busy_.store(false, std::memory_order_release);
    }
  }

  std::atomic<uint32_t> calls_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  const Job* job_ = nullptr;
  std::thread helper_;  // last: it uses all the others
};

}  // namespace treeattn::micro
