// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "bindings/params.h"

namespace treeattn::bindings {
namespace {

template <class T>
PerRequest<T> per_request(Match& match, const OptTensor& t, const char* name, ScalarType dtype) {
  if (!t) return {.data = nullptr, .stride = 0};
  match(*t, name, {"num_requests"}, {dtype});
  return {.data = const_data<T>(*t), .stride = t->stride(0)};
}

AcceptRule to_rule(int64_t rule) {
  TREEATTN_CHECK(rule >= 0 && rule < kNumAcceptRules, "accept_path: rule must be in [0, ",
                 kNumAcceptRules, "), got ", rule);
  return static_cast<AcceptRule>(rule);
}

DraftLaws draft_laws(Match& match, const OptTensor& probs, const OptTensor& logits,
                     const OptTensor& rows, const OptTensor& ids, bool without_replacement) {
  TREEATTN_CHECK(!probs || !logits,
                 "accept_path: draft_probs and draft_logits must not both be given");
  const OptTensor& laws = logits ? logits : probs;
  if (!laws) return {};
  const char* const name = logits ? "draft_logits" : "draft_probs";
  match(*laws, name, {rows ? "num_draft_rows" : "num_nodes", "draft_vocab_size"}, kFloatTypes);
  match.packed_from(*laws, name, 1);
  TREEATTN_CHECK(match["draft_vocab_size"] <= match["vocab_size"], "accept_path: ", name,
                 " must have at most vocab_size = ", match["vocab_size"], " columns, got ",
                 match["draft_vocab_size"]);
  if (rows) {
    match(*rows, "draft_rows", {"num_nodes"}, {ScalarType::Int});
    match.packed_from(*rows, "draft_rows", 0);
  }
  if (ids) {
    match(*ids, "draft_ids", {"draft_vocab_size"}, {ScalarType::Long});
    match.packed_from(*ids, "draft_ids", 0);
  }
  return {.laws = laws->const_data_ptr(),
          .rows = const_data<int32_t>(rows),
          .ids = const_data<int64_t>(ids),
          .columns = nullptr,
          .stride = laws->stride(0),
          .num_rows = match.size(rows ? "num_draft_rows" : "num_nodes"),
          .num_columns = match.size("draft_vocab_size"),
          .dtype = to_dtype(laws->scalar_type()),
          .are_logits = logits.has_value(),
          .without_replacement = without_replacement};
}

AcceptCounts accept_counts(Match& match, const OptTensor& counts) {
  if (!counts) return {};
  match(*counts, "counts", {"2", "num_depths", "num_ranks"}, {ScalarType::Long});
  match.packed_from(*counts, "counts", 0);
  return {.data = mutable_data<int64_t>(*counts),
          .num_depths = match.size("num_depths"),
          .num_ranks = match.size("num_ranks")};
}

}  // namespace

AcceptPathCall accept_path_params(
    const Tensor& logits, const Tensor& tokens, const Tensor& parents, const Tensor& node_indptr,
    const Tensor& context_lens, const Tensor& depths, const Tensor& plan_status, int64_t max_depth,
    int64_t rule_number, const OptTensor& temperature, const OptTensor& top_k,
    const OptTensor& top_p, const OptTensor& min_p, const OptTensor& seeds,
    const OptTensor& draft_probs, const OptTensor& draft_logits, const OptTensor& draft_rows,
    const OptTensor& draft_ids, bool without_replacement, const OptTensor& allowed,
    const OptTensor& uniforms, double typical_epsilon, double typical_delta, const Tensor& path,
    const Tensor& num_accepted, const Tensor& next_tokens, const Tensor& status,
    const Tensor& emitted, const OptTensor& logprobs, const OptTensor& processed_logprobs,
    const OptTensor& counts, const OptTensor& workspace) {
  Match match("accept_path");
  const auto packed = [&match](const Tensor& t, const char* name,
                               std::initializer_list<const char*> shape,
                               std::initializer_list<ScalarType> dtypes) {
    match(t, name, shape, dtypes);
    match.packed_from(t, name, 0);
  };
  constexpr auto kInt = ScalarType::Int;
  constexpr auto kLong = ScalarType::Long;
  packed(parents, "parents", {"num_nodes"}, {kInt});
  match(logits, "logits", {"num_nodes", "vocab_size"}, kFloatTypes);
  match.packed_from(logits, "logits", 1);
  packed(tokens, "tokens", {"num_nodes"}, {kInt, kLong});
  packed(context_lens, "context_lens", {"num_requests"}, {kInt});
  packed(node_indptr, "node_indptr", {"num_requests + 1"}, {kInt});
  TREEATTN_CHECK(node_indptr.size(0) == match["num_requests"] + 1,
                 "accept_path: node_indptr must have shape [num_requests + 1] with num_requests = ",
                 match["num_requests"], ", got [", node_indptr.size(0), "]");
  packed(depths, "depths", {"num_nodes"}, {kInt});
  packed(plan_status, "plan_status", {"num_requests"}, {kInt});
  TREEATTN_CHECK(max_depth >= 0 && max_depth < std::numeric_limits<int>::max(),
                 "accept_path: max_depth must not be negative, got ", max_depth);
  const AcceptRule rule = to_rule(rule_number);
  const bool sampled = rule != AcceptRule::kGreedy;
  if (allowed) {
    match.bind("ceil(vocab_size / 32)", (match["vocab_size"] + 31) / 32);
    match(*allowed, "allowed", {"num_nodes", "ceil(vocab_size / 32)"}, {kInt});
    match.packed_from(*allowed, "allowed", 1);
  }
  if (uniforms) packed(*uniforms, "uniforms", {"num_nodes", "2"}, {ScalarType::Float});
  match.bind("max_depth + 1", max_depth + 1);
  packed(path, "path", {"num_requests", "max_depth + 1"}, {kInt});
  packed(num_accepted, "num_accepted", {"num_requests"}, {kInt});
  packed(next_tokens, "next_tokens", {"num_requests"}, {kLong});
  packed(status, "status", {"num_requests"}, {kInt});
  packed(emitted, "emitted", {"num_requests", "max_depth + 1"}, {kLong});
  if (logprobs) {
    packed(*logprobs, "logprobs", {"num_requests", "max_depth + 1"}, {ScalarType::Float});
  }
  if (processed_logprobs) {
    packed(*processed_logprobs, "processed_logprobs", {"num_requests", "max_depth + 1"},
           {ScalarType::Float});
  }
  const OptTensor none;  // rule greedy ignores every sampling parameter, others draft laws
  const DraftLaws drafts =
      reads_drafts(rule)
          ? draft_laws(match, draft_probs, draft_logits, draft_rows, draft_ids, without_replacement)
          : DraftLaws{};
  const AcceptPathParams params{
      .logits = logits.const_data_ptr(),
      .tokens = tokens.const_data_ptr(),
      .parents = const_data<int32_t>(parents),
      .node_indptr = const_data<int32_t>(node_indptr),
      .context_lens = const_data<int32_t>(context_lens),
      .depths = const_data<int32_t>(depths),
      .plan_status = const_data<int32_t>(plan_status),
      .temperature =
          per_request<float>(match, sampled ? temperature : none, "temperature", ScalarType::Float),
      .top_k = per_request<int32_t>(match, sampled ? top_k : none, "top_k", kInt),
      .top_p = per_request<float>(match, sampled ? top_p : none, "top_p", ScalarType::Float),
      .min_p = per_request<float>(match, sampled ? min_p : none, "min_p", ScalarType::Float),
      .seeds = per_request<int64_t>(match, sampled ? seeds : none, "seeds", kLong),
      .drafts = drafts,
      .allowed = const_data<uint32_t>(allowed),
      .uniforms = const_data<float>(uniforms),
      .path = mutable_data<int32_t>(path),
      .num_accepted = mutable_data<int32_t>(num_accepted),
      .next_tokens = mutable_data<int64_t>(next_tokens),
      .status = mutable_data<int32_t>(status),
      .emitted = mutable_data<int64_t>(emitted),
      .logprobs = logprobs ? mutable_data<float>(*logprobs) : nullptr,
      .processed_logprobs = processed_logprobs ? mutable_data<float>(*processed_logprobs) : nullptr,
      .counts = accept_counts(match, counts),
      .typical_epsilon = typical_epsilon,
      .typical_delta = typical_delta,
      .stride_logits = logits.stride(0),
      .stride_allowed = allowed ? allowed->stride(0) : 0,
      .num_requests = match.size("num_requests"),
      .num_nodes = match.size("num_nodes"),
      .vocab_size = match.size("vocab_size"),
      .max_depth = static_cast<int>(max_depth),
      .rule = rule,
      .dtype = to_dtype(logits.scalar_type()),
      .wide_tokens = tokens.scalar_type() == kLong,
  };
  return {.params = params, .workspace = scratch_of<int32_t>(match, workspace, "workspace", kInt)};
}

}  // namespace treeattn::bindings
