// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/match.h"
#include "treeattn/accept_path.h"
#include "treeattn/merge_states.h"
#include "treeattn/plan_tree.h"
#include "treeattn/remap_kv.h"
#include "treeattn/tree_attention.h"
#include "treeattn/write_kv.h"

// The CPU ops, one file each: tensors become checked params, then the kernel runs.
namespace treeattn::bindings {

using OptTensor = std::optional<Tensor>;

void plan_tree(const Tensor& parents, const Tensor& node_indptr, const Tensor& context_lens,
               const Tensor& block_table, const OptTensor& slot_mapping, int64_t block_size,
               std::optional<int64_t> max_depth, const Tensor& depths, const Tensor& positions,
               const Tensor& slots, const Tensor& ancestors, const Tensor& order,
               const Tensor& status);

void write_kv(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
              const Tensor& slot_mapping, const OptTensor& k_scale, const OptTensor& v_scale);

void tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor node_indptr,
                    Tensor context_lens, Tensor block_table, Tensor depths, Tensor slot_mapping,
                    Tensor ancestors, Tensor order, Tensor status, int64_t block_size,
                    double sm_scale, std::optional<int64_t> window, double logits_soft_cap,
                    OptTensor sinks, OptTensor alibi_slopes, OptTensor k_scale, OptTensor v_scale,
                    Tensor out, OptTensor lse);

void accept_path(const Tensor& logits, const Tensor& tokens, const Tensor& parents,
                 const Tensor& node_indptr, const Tensor& context_lens, const Tensor& depths,
                 const Tensor& plan_status, int64_t max_depth, int64_t rule,
                 const OptTensor& temperature, const OptTensor& top_k, const OptTensor& top_p,
                 const OptTensor& min_p, const OptTensor& seeds, const OptTensor& allowed,
                 const OptTensor& uniforms, const Tensor& path, const Tensor& num_accepted,
                 const Tensor& next_tokens, const Tensor& status, const Tensor& emitted,
                 const OptTensor& logprobs);

void remap_kv(const std::vector<Tensor>& k_caches, const std::vector<Tensor>& v_caches,
              const std::vector<Tensor>& k_scales, const std::vector<Tensor>& v_scales,
              const Tensor& node_indptr, const Tensor& context_lens, const Tensor& block_table,
              const Tensor& slot_mapping, const Tensor& path, const Tensor& num_accepted,
              const Tensor& status, int64_t block_size, const Tensor& moved);

void merge_states(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                  const Tensor& lse_b, const Tensor& out, const Tensor& lse);

void calibrate_flops(bool dots, int64_t rounds, Tensor flops);

void calibrate_read(Tensor data, Tensor sums);

}  // namespace treeattn::bindings
