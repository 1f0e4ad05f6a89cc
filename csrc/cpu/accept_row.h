// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/row_choice.h"
#include "treeattn/accept_path.h"

namespace treeattn::cpu {

// What a rule makes of one row, whatever the way there was.
struct RowResult {
  int token;  // -1 unless status is kOk
  Status status;
  float log_prob;            // of the token; set when the op returns log probabilities
  float processed_log_prob;  // likewise
};

template <class T>
T value_or(const PerRequest<T>& values, int request, T otherwise) {
  return values.data != nullptr ? values.data[request * values.stride] : otherwise;
}

inline int64_t token_of(const AcceptPathParams& p, int64_t node) {
  return p.wide_tokens ? static_cast<const int64_t*>(p.tokens)[node]
                       : static_cast<const int32_t*>(p.tokens)[node];
}

// `node` is a row of the batch.
LogitsRow row_of(const AcceptPathParams& p, int64_t node);

// What shapes a request's target where its temperature is above 0; rule typical knows no filters.
Sampling sampling_of(const AcceptPathParams& p, int request);

// Greedy, whatever the rule.
bool is_greedy(const AcceptPathParams& p, int request);

// Reads rows of logits with the scratch of one thread.
class RowReader {
 public:
  explicit RowReader(const AcceptPathParams& p) : p_(p), chooser_(row_scan()) {}

  // `node` is a row of the batch.
  RowResult read(int request, int64_t node);

 private:
  void draw(int request, int64_t node, RowResult& result);

  const AcceptPathParams& p_;
  RowChooser chooser_;
};

}  // namespace treeattn::cpu
