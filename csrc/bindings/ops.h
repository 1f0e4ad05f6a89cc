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

void plan_tree(Tensor parents, Tensor node_indptr, Tensor context_lens, Tensor block_table,
               OptTensor slot_mapping, int64_t block_size, std::optional<int64_t> max_depth,
               Tensor depths, Tensor positions, Tensor slots, Tensor ancestors, Tensor order,
               Tensor status);

void write_kv(Tensor k, Tensor v, Tensor k_cache, Tensor v_cache, Tensor slot_mapping,
              OptTensor k_scale, OptTensor v_scale);

void tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor node_indptr,
                    Tensor context_lens, Tensor block_table, Tensor depths, Tensor slot_mapping,
                    Tensor ancestors, Tensor order, Tensor status, int64_t block_size,
                    double sm_scale, std::optional<int64_t> window, double logits_soft_cap,
                    OptTensor sinks, OptTensor alibi_slopes, OptTensor k_scale, OptTensor v_scale,
                    Tensor out, OptTensor lse);

void accept_path(Tensor logits, Tensor tokens, Tensor parents, Tensor node_indptr,
                 Tensor context_lens, Tensor depths, Tensor plan_status, int64_t max_depth,
                 int64_t rule, OptTensor temperature, OptTensor top_k, OptTensor top_p,
                 OptTensor min_p, OptTensor seeds, OptTensor allowed, OptTensor uniforms,
                 Tensor path, Tensor num_accepted, Tensor next_tokens, Tensor status,
                 Tensor emitted, OptTensor logprobs);

void remap_kv(std::vector<Tensor> k_caches, std::vector<Tensor> v_caches,
              std::vector<Tensor> k_scales, std::vector<Tensor> v_scales, Tensor node_indptr,
              Tensor context_lens, Tensor block_table, Tensor slot_mapping, Tensor path,
              Tensor num_accepted, Tensor status, int64_t block_size, Tensor moved);

void merge_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b, Tensor out, Tensor lse);

}  // namespace treeattn::bindings
