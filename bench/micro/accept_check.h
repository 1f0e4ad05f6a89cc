// SPDX-License-Identifier: Apache-2.0
// accept_path against a scalar loop in double precision that shares no code with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "micro/accept_batch.h"
#include "micro/common/check.h"
#include "micro/common/elements.h"
#include "micro/common/isas.h"
#include "micro/common/random.h"

namespace treeattn::micro {

using Reals = std::vector<double>;

struct ScalarLaw {
  Reals probabilities;  // by id, after all filters
  double margin;        // how far the nearest id is from being kept or dropped by top-p or min-p
};

inline Reals softmax(const Reals& logits, double temperature) {
  const double max = *std::max_element(logits.begin(), logits.end());
  Reals p;
  for (const double x : logits) p.push_back(std::exp((x - max) / temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

// Sorts the whole vocabulary: temperature, top-k, top-p, min-p, in this order.
inline ScalarLaw scalar_law(const Reals& logits, const AcceptSettings& s) {
  ScalarLaw law{.probabilities = softmax(logits, s.temperature), .margin = 1};
  Reals& p = law.probabilities;
  std::vector<int> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const auto drop_from = [&](size_t first) {
    for (size_t i = first; i < ids.size(); ++i) p[ids[i]] = 0;
    ids.resize(std::min(first, ids.size()));
    double total = 0;
    for (const int id : ids) total += p[id];
    for (const int id : ids) p[id] /= total;
  };
  if (s.top_k > 0) drop_from(s.top_k);
  if (s.top_p < 1) {
    double mass = 0;
    size_t kept = 0;
    while (kept < ids.size() && mass < s.top_p) {
      mass += p[ids[kept++]];
      law.margin = std::min(law.margin, std::abs(mass - s.top_p));
    }
    drop_from(kept);
  }
  if (s.min_p > 0) {
    const double largest = p[ids.front()];
    size_t kept = ids.size();
    for (size_t i = ids.size(); i-- > 0;) {
      const double ratio = p[ids[i]] / largest;
      law.margin = std::min(law.margin, std::abs(ratio - s.min_p));
      if (ratio < s.min_p) kept = i;
    }
    drop_from(kept);
  }
  return law;
}

// A batch of random trees whose walks are some nodes long, and what the scalar loop says of each
// row. Draws fall into the middle of a token's interval, so that rounding cannot move them out.
class AcceptCheckCase {
 public:
  AcceptCheckCase(DType dtype, int vocab_size, const AcceptSettings& settings, uint64_t seed)
      : random_(seed), vocab_size_(vocab_size), logits_(dtype, int64_t{kNodes} * vocab_size) {
    const std::vector<Parents> trees{deep_tree(17, 5, seed), chain_tree(6), star_tree(9)};
    std::vector<int32_t> tokens;
    int start = 0;
    for (const Parents& tree : trees) {
      for (size_t i = 0; i < tree.size(); ++i) choose(start + static_cast<int>(i), settings);
      for (const int32_t parent : tree) {
        const bool hit = parent >= 0 && random_.uniform() < 0.7;
        tokens.push_back(hit ? choices_[start + parent] : random_.below(vocab_size));
      }
      start += static_cast<int>(tree.size());
    }
    batch_.emplace_back(settings, trees, std::move(tokens));
    batch_.back().logprobs.resize(batch_.back().emitted.size());
  }

  AcceptBatch& batch() { return batch_.back(); }
  const Elements& logits() const { return logits_; }
  const std::vector<float>& uniforms() const { return uniforms_; }
  AcceptPathParams params() { return batch().params(logits_, vocab_size_, uniforms_); }

  void run(Check& check, const std::string& name) {
    const AcceptBatch& batch = batch_.back();
    call_accept_path(params());
    for (int b = 0; b < batch.num_requests; ++b) compare_walk(check, batch, b, name);
    check.end_case();
  }

 private:
  static constexpr int kNodes = 17 + 6 + 9;

  Reals row(int node) const {
    Reals x;
    for (int id = 0; id < vocab_size_; ++id)
      x.push_back(logits_.get(node * int64_t{vocab_size_} + id));
    return x;
  }

  // Fills a row of logits and its draw, and notes the token.
  void choose(int node, const AcceptSettings& settings) {
    ScalarLaw law;
    do {
      for (int id = 0; id < vocab_size_; ++id) {
        logits_.set(node * int64_t{vocab_size_} + id, 4 * random_.normal());
      }
      law = scalar_law(row(node), settings);
    } while (law.margin < 1e-5);
    const Reals& p = law.probabilities;
    int token = static_cast<int>(std::max_element(p.begin(), p.end()) - p.begin());
    double uniform = random_.uniform();
    if (settings.rule == AcceptRule::kTarget) {
      double before = 0;
      const double wish = uniform;
      for (int id = 0; id < vocab_size_; ++id) {
        const bool inside = wish >= before && wish < before + p[id];
        if (inside && p[id] > 1e-3) token = id;
        before += p[id];
      }
      uniform = std::accumulate(p.begin(), p.begin() + token, p[token] / 2);
    }
    choices_.push_back(token);
    uniforms_.push_back(0.0f);
    uniforms_.push_back(static_cast<float>(uniform));
  }

  void compare_walk(Check& check, const AcceptBatch& batch, int b, const std::string& name) const {
    const int start = batch.node_indptr[b];
    const int end = batch.node_indptr[b + 1];
    std::vector<int> path{0};
    for (bool more = true; more;) {
      more = false;
      for (int i = start; i < end && !more; ++i) {
        more = batch.parents[i] == path.back() && batch.tokens[i] == choices_[start + path.back()];
        if (more) path.push_back(i - start);
      }
    }
    const auto at = [&](const char* what, int64_t k) {
      return [=, &name] {
        return name + " request " + std::to_string(b) + " " + what + "[" + std::to_string(k) + "]";
      };
    };
    const auto length = static_cast<int64_t>(path.size());
    check.equal<int64_t>(batch.status[b], kOk, at("status", 0));
    check.equal<int64_t>(batch.num_accepted[b], length - 1, at("num_accepted", 0));
    check.equal<int64_t>(batch.next_tokens[b], choices_[start + path.back()], at("next_tokens", 0));
    for (int64_t k = 0; k < batch.width(); ++k) {
      const int64_t i = b * batch.width() + k;
      const bool inside = k < length;
      const int token = inside ? choices_[start + path[k]] : -1;
      check.equal<int64_t>(batch.path[i], inside ? path[k] : -1, at("path", k));
      check.equal<int64_t>(batch.emitted[i], token, at("emitted", k));
      if (!inside || batch.emitted[i] != token) continue;
      const double expected = std::log(softmax(row(start + path[k]), 1)[token]);
      check.compare(batch.logprobs[i], expected, 4e-6, at("logprobs", k));
    }
  }

  Random random_;
  int vocab_size_;
  Elements logits_;
  std::vector<float> uniforms_;
  std::vector<int> choices_;
  std::vector<AcceptBatch> batch_;  // exactly one, made last
};

// Calls visit(case, its name) for every rule and filter on some vocabularies and both dtypes.
template <class Visit>
void for_each_accept_case(Visit&& visit) {
  const std::vector<AcceptSettings> all_settings{
      {},
      {.rule = AcceptRule::kTarget},
      {.rule = AcceptRule::kTarget, .temperature = 0.7f, .top_p = 0.9f},
      {.rule = AcceptRule::kTarget,
       .temperature = 1.3f,
       .top_k = 20,
       .top_p = 0.95f,
       .min_p = 0.02f},
      {.rule = AcceptRule::kTarget, .min_p = 0.1f}};
  uint64_t seed = 1;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int vocab_size : {33, 1000, 4099}) {
      for (const AcceptSettings& settings : all_settings) {
        AcceptCheckCase test(dtype, vocab_size, settings, ++seed);
        visit(test, std::string(dtype_name(dtype)) + " vocab " + std::to_string(vocab_size) +
                        " setting " + std::to_string(&settings - all_settings.data()));
      }
    }
  }
}

inline void check_accept(Check& check) {
  for_each_accept_case([&](AcceptCheckCase& test, const std::string& name) {
    for (const cpu::Isa isa : supported_isas()) {
      use_isa(isa);
      test.run(check, std::string(cpu::isa_name(isa)) + " " + name);
    }
  });
}

}  // namespace treeattn::micro
