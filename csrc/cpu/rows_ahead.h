// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "cpu/accept_row.h"
#include "treeattn/accept_path.h"

namespace treeattn::cpu {

// Runs a worker once on each thread and returns when all are done.
using OnThreads = std::function<void(const std::function<void()>&)>;

// Reads rows of one request ahead of its walk, on several threads, down the path of first children:
// the likeliest way. Each row is read as if alone, so what a row says never depends on the
// threads; a thread stops taking rows once a row is known to lead off the path.
class RowsAhead {
 public:
  RowsAhead(const AcceptPathParams& p, int request, const OnThreads& on_threads);

  // What the row of `node` says, `depth` edges below the root.
  const RowResult& operator()(int node, int depth);

 private:
  void plan(int node, int depth);
  void read();

  const AcceptPathParams& p_;
  int request_;
  const OnThreads& on_threads_;
  std::unique_ptr<int[]> path_;           // nodes, from the one that the walk stands at
  std::unique_ptr<RowResult[]> results_;  // of the path
  int first_depth_ = 0, length_ = 0;
  std::atomic<int> next_{0};   // the next row to be taken
  std::atomic<int> limit_{0};  // rows from here on are not on the walk
};

}  // namespace treeattn::cpu
