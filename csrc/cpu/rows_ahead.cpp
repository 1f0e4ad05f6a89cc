// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows_ahead.h"

#include <algorithm>

namespace treeattn::cpu {

RowsAhead::RowsAhead(const AcceptPathParams& p, int request, const OnThreads& on_threads)
    : p_(p), request_(request), on_threads_(on_threads) {
  const int num_rows =
      std::min(p.node_indptr[request + 1] - p.node_indptr[request], p.max_depth + 1);
  path_ = std::make_unique_for_overwrite<int[]>(num_rows);
  results_ = std::make_unique_for_overwrite<RowResult[]>(num_rows);
}

const RowResult& RowsAhead::operator()(int node, int depth) {
  const int row = depth - first_depth_;
  if (row < length_ && path_[row] == node) return results_[row];
  plan(node, depth);
  on_threads_([this] { read(); });
  return results_[0];
}

void RowsAhead::plan(int node, int depth) {
  const int64_t start = p_.node_indptr[request_];
  const int num_nodes = static_cast<int>(p_.node_indptr[request_ + 1] - start);
  first_depth_ = depth;
  length_ = 0;
  path_[length_++] = node;
  for (int child = node + 1; child < num_nodes && depth + length_ <= p_.max_depth; ++child) {
    if (p_.parents[start + child] == path_[length_ - 1]) path_[length_++] = child;
  }
  next_ = 0;
  limit_ = length_;
}

void RowsAhead::read() {
  RowReader reader(p_);
  const int64_t start = p_.node_indptr[request_];
  for (int row = next_++; row < limit_; row = next_++) {
    const RowResult result = reader.read(request_, start + path_[row]);
    results_[row] = result;
    const bool goes_on = row + 1 < length_ && result.status == kOk &&
                         token_of(p_, start + path_[row + 1]) == result.token;
    int limit = limit_;
    while (!goes_on && row + 1 < limit && !limit_.compare_exchange_weak(limit, row + 1)) {
    }
  }
}

}  // namespace treeattn::cpu
