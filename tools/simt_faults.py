# SPDX-License-Identifier: Apache-2.0
"""Faults that tools/simt_mutants.py puts into the CUDA kernels, and the tests that catch each."""

from __future__ import annotations

from simt_accept_faults import ACCEPT_FAULTS
from simt_fault import Fault as Fault
from simt_fault import fault as _fault

_ATTEND = "tests/test_tree_attention.py -k 'simt and test_tree_attention and ({})'"
_WORK = "tests/test_attention_work.py -k '{}'"
_PLAN = "tests/test_plan_tree.py -k 'simt and ({})'"
_REMAP = "tests/test_remap_kv.py -k 'simt and {}'"
_WIDE = "tests/faults/test_a10_wide_offsets.py -k 'simt and {}'"

FAULTS = [
    # ---- plan_tree ----
    _fault(
        "plan.ranked_before_the_tour_is_linked",
        "plan_tree/depth_first.cuh",
        "  __syncthreads();  // the tour is linked\n",
        "",
        _PLAN.format("one_tree or chain"),
    ),
    _fault(
        "plan.siblings_linked_before_lists_are_empty",
        "plan_tree/depth_first.cuh",
        "  __syncthreads();  // lists are empty\n",
        "",
        _PLAN.format("ragged or thousand"),
    ),
    _fault(
        "plan.subtree_one_node_short",
        "plan_tree/depth_first.cuh",
        "    t.subtree_ends[i] = n - behind;\n",
        "    t.subtree_ends[i] = n - behind - 1;\n",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "plan.tail_of_rows_not_cleared",
        "plan_tree/plan_tree.cu",
        "    const int owned = first_bad > 0 ? p.node_indptr[first_bad] : 0;\n",
        "    const int owned = p.num_nodes;\n",
        _PLAN.format("capacity"),
    ),
    # ---- tree_attention ----
    _fault(
        "attention.missing_wait_for_cp_async",
        "tree_attention/kernel.cuh",
        "      cp_async_wait<0>();\n",
        "      cp_async_wait<1>();\n",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.missing_barrier_per_tile",
        "tree_attention/kernel.cuh",
        "      __syncthreads();  // tile t is there, and tile t - 1 is done with\n",
        "",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.queries_overwritten_by_the_second_tile",
        "tree_attention/kernel.cuh",
        "        if constexpr (Traits::kQueriesInRegisters) __syncthreads();",
        "        //",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.wrong_ldmatrix_lane_of_keys",
        "tree_attention/product.cuh",
        "2 * step + lane / 8 % 2));",
        "2 * step + lane / 16));",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.wrong_ldmatrix_lane_of_queries",
        "tree_attention/product.cuh",
        "(warp_row + lane % 16, 2 * step + lane / 16);",
        "(warp_row + lane / 2, 2 * step + lane % 2);",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.values_not_transposed",
        "tree_attention/product.cuh",
        "    ldmatrix_x4_trans(v,",
        "    ldmatrix_x4(v,",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.off_by_one_tile",
        "tree_attention/schedule.cuh",
        "  const int num_tiles = divide_up(part.tile.num_keys, Traits::kTileKeys);\n",
        "  const int num_tiles = part.tile.num_keys / Traits::kTileKeys;\n",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.last_chunk_of_keys_not_fetched",
        "tree_attention/kernel.cuh",
        "(tile.num_keys - t * kTileKeys + 15) / 16 * 16);",
        "(tile.num_keys - t * kTileKeys) / 16 * 16);",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.unmasked_tail",
        "tree_attention/kernel.cuh",
        "masked = (t + 1) * kTileKeys > tile.context_len ||",
        "masked = t * kTileKeys > tile.context_len ||",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.mask_code_on_prefix_tiles",
        "tree_attention/kernel.cuh",
        "masked = (t + 1) * kTileKeys > tile.context_len ||",
        "masked = (t + 2) * kTileKeys > tile.context_len ||",
        _WORK.format("prefix_tiles_run_no_mask_code"),
    ),
    _fault(
        "attention.a_place_past_the_subtree_sees_the_key",
        "tree_attention/scores.cuh",
        "  bool seen = behind < static_cast<uint32_t>(table.count[column]);\n",
        "  bool seen = behind <= static_cast<uint32_t>(table.count[column]);\n",
        _ATTEND.format("bf16"),
    ),
    _fault(
        "attention.tiles_not_swizzled",
        "tree_attention/traits.cuh",
        "(piece ^ (row & 7)) * 8;",
        "piece * 8;",
        _WORK.format("bank_conflicts"),
    ),
    _fault(
        "attention.int32_block_offset",
        "tree_attention/key_table.cuh",
        "  return key.block * pool.stride_block +",
        "  return static_cast<int>(key.block * pool.stride_block) +",
        _WIDE.format("offsets"),
    ),
    _fault(
        "attention.merged_before_the_last_part",
        "tree_attention/state.cuh",
        "  return s.arrived == part.num_parts - 1;\n",
        "  return s.arrived == part.num_parts - 2;\n",
        _WORK.format("any_number_of_ctas and 64"),
    ),
    _fault(
        "attention.arrivals_not_reset",
        "tree_attention/state.cuh",
        "    if (s.arrived == part.num_parts - 1) arrivals[part.row_tile] = 0;",
        "    //",
        _WORK.format("any_number_of_ctas and 64"),
    ),
    _fault(
        "attention.few_rows_merged_too_early",
        "tree_attention/state.cuh",
        "  __syncthreads();  // all outputs are there\n",
        "",
        _ATTEND.format("head-dim-248 or smollm2 or bf16"),
    ),
    _fault(
        "attention.old_maximum_not_rescaled",
        "tree_attention/product.cuh",
        "    state.sum[i] *= rescale;\n",
        "",
        _ATTEND.format("fp16 or bf16"),
    ),
    *ACCEPT_FAULTS,
    # ---- remap_kv ----
    _fault(
        "remap.claims_not_waited_for",
        "remap_kv/kernel.cuh",
        "  __syncthreads();  // this CTA's claims are made\n",
        "",
        "tests/test_remap_kv_device.py -k 'status_4 and shared_block and one_cta'",
    ),
    _fault(
        "remap.crossing_moves_in_any_order",
        "remap_kv/move_rows.cuh",
        "  const bool is_ordered = load_global(w.is_ordered()) != 0;\n",
        "  const bool is_ordered = false;\n",
        _REMAP.format("custom_slots"),
    ),
    _fault(
        "remap.first_cta_orders_the_moves",
        "remap_kv/kernel.cuh",
        "!= roles.num_planners() - 1) return;",
        "!= 0) return;",
        "tests/test_remap_kv_device.py -k 'one_launch and many_custom'",
    ),
    _fault(
        "remap.arrivals_are_left",
        "remap_kv/kernel.cuh",
        "    store_global(header.arrived(), 0);\n",
        "",
        "tests/test_remap_kv_device.py -k 'one_after_the_other'",
    ),
    _fault(
        "remap.claims_are_left",
        "remap_kv/kernel.cuh",
        "    store_global(header.claimed(), 0);  // checkers, who read it, have all arrived\n",
        "",
        "tests/test_remap_kv_device.py -k 'one_after_the_other and planners'",
    ),
    _fault(
        "remap.tickets_are_not_counted_anew",
        "remap_kv/roles.cuh",
        "    if (ticket - turn == gridDim.x - 1) {\n",
        "    if (ticket - turn == gridDim.x) {\n",
        "tests/test_remap_kv_device.py -k 'one_after_the_other'",
    ),
    _fault(
        "remap.turn_does_not_change",
        "remap_kv/roles.cuh",
        "turn ^ RemapHeader::kTurnBit);",
        "turn);",
        "tests/test_remap_kv_device.py -k 'one_after_the_other'",
    ),
    _fault(
        "remap.movers_start_first",
        "remap_kv/roles.cuh",
        "  return {.number = static_cast<int>(s.ticket & ",
        "  return {.number = static_cast<int>(gridDim.x - 1 - s.ticket & ",
        _REMAP.format("test_remap_kv"),
    ),
    _fault(
        "remap.lists_packed_with_gaps",
        "remap_kv/plan_request.cuh",
        "      const int at = num_moves + __popc(lanes & ((1u << lane) - 1));\n",
        "      const int at = num_moves + __popc(lanes & ((2u << lane) - 1));\n",
        _REMAP.format("test_remap_kv"),
    ),
    _fault(
        "remap.int32_block_offset",
        "remap_kv/move_rows.cuh",
        "column + block * plane.stride_block +",
        "column + static_cast<int>(block * plane.stride_block) +",
        _WIDE.format("offsets"),
    ),
    # ---- write_kv ----
    _fault(
        "write.int32_slot_offset",
        "write_kv/write_kv.cu",
        "kv_offset(pool, slot, 0);",
        "static_cast<int>(kv_offset(pool, slot, 0));",
        _WIDE.format("offsets"),
    ),
    _fault(
        "write.slot_past_the_pool",
        "write_kv/write_kv.cu",
        "  if (slot < 0 || slot >= int64_t{pool.num_blocks} * pool.block_size) return;\n",
        "  if (slot < 0) return;\n",
        "tests/test_write_kv.py -k 'simt and outside_the_pool'",
    ),
    _fault(
        "write.wide_stores_to_narrow_rows",
        "write_kv/write_kv.cu",
        "           rows_aligned(rows, {stride_node, stride_head}, sizeof(From), 16) &&\n",
        "",
        "tests/test_write_kv.py -k 'simt and not_aligned'",
    ),
    # ---- merge_states ----
    _fault(
        "merge.empty_state_is_weighed",
        "merge_states/merge_states.cu",
        "    const bool has_a = lse_a != -INFINITY, has_b = lse_b != -INFINITY;\n",
        "    const bool has_a = true, has_b = true;\n",
        "tests/test_merge_states.py -k 'simt and empty_state'",
    ),
]
