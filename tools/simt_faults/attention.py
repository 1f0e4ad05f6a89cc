# SPDX-License-Identifier: Apache-2.0
"""Faults of tree_attention."""

from __future__ import annotations

from simt_faults.fault import Fault, fault

_ATTEND = "tests/test_tree_attention.py -k 'simt and test_tree_attention and ({})'"
_WORK = "tests/test_attention_work.py -k '{}'"
_WIDE = "tests/faults/test_a10_wide_offsets.py -k 'simt and {}'"

FAULTS: list[Fault] = [
    fault(
        "attention.missing_wait_for_cp_async",
        "tree_attention/kernel.cuh",
        "      cp_async_wait<0>();\n",
        "      cp_async_wait<1>();\n",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.missing_barrier_per_tile",
        "tree_attention/kernel.cuh",
        "      __syncthreads();  // tile t is there, and tile t - 1 is done with\n",
        "",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.queries_overwritten_by_the_second_tile",
        "tree_attention/kernel.cuh",
        "        if constexpr (Traits::kQueriesInRegisters) __syncthreads();",
        "        //",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.wrong_ldmatrix_lane_of_keys",
        "tree_attention/product.cuh",
        "2 * step + lane / 8 % 2));",
        "2 * step + lane / 16));",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.wrong_ldmatrix_lane_of_queries",
        "tree_attention/product.cuh",
        "(warp_row + lane % 16, 2 * step + lane / 16);",
        "(warp_row + lane / 2, 2 * step + lane % 2);",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.values_not_transposed",
        "tree_attention/product.cuh",
        "    ldmatrix_x4_trans(v,",
        "    ldmatrix_x4(v,",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.off_by_one_tile",
        "tree_attention/schedule.cuh",
        "  const int num_tiles = divide_up(part.tile.num_keys, Traits::kTileKeys);\n",
        "  const int num_tiles = part.tile.num_keys / Traits::kTileKeys;\n",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.last_chunk_of_keys_not_fetched",
        "tree_attention/kernel.cuh",
        "(tile.num_keys - t * kTileKeys + 15) / 16 * 16);",
        "(tile.num_keys - t * kTileKeys) / 16 * 16);",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.unmasked_tail",
        "tree_attention/kernel.cuh",
        "masked = (t + 1) * kTileKeys > tile.context_len ||",
        "masked = t * kTileKeys > tile.context_len ||",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.mask_code_on_prefix_tiles",
        "tree_attention/kernel.cuh",
        "masked = (t + 1) * kTileKeys > tile.context_len ||",
        "masked = (t + 2) * kTileKeys > tile.context_len ||",
        _WORK.format("prefix_tiles_run_no_mask_code"),
    ),
    fault(
        "attention.a_place_past_the_subtree_sees_the_key",
        "tree_attention/scores.cuh",
        "  bool seen = behind < static_cast<uint32_t>(table.count[column]);\n",
        "  bool seen = behind <= static_cast<uint32_t>(table.count[column]);\n",
        _ATTEND.format("bf16"),
    ),
    fault(
        "attention.tiles_not_swizzled",
        "tree_attention/traits.cuh",
        "(piece ^ (row & 7)) * 8;",
        "piece * 8;",
        _WORK.format("bank_conflicts"),
    ),
    fault(
        "attention.int32_block_offset",
        "tree_attention/key_table.cuh",
        "  return key.block * pool.stride_block +",
        "  return static_cast<int>(key.block * pool.stride_block) +",
        _WIDE.format("offsets"),
    ),
    fault(
        "attention.merged_before_the_last_part",
        "tree_attention/state.cuh",
        "  return s.arrived == part.num_parts - 1;\n",
        "  return s.arrived == part.num_parts - 2;\n",
        _WORK.format("any_number_of_ctas and 64"),
    ),
    fault(
        "attention.arrivals_not_reset",
        "tree_attention/state.cuh",
        "    if (s.arrived == part.num_parts - 1) arrivals[part.row_tile] = 0;",
        "    //",
        _WORK.format("any_number_of_ctas and 64"),
    ),
    fault(
        "attention.few_rows_merged_too_early",
        "tree_attention/state.cuh",
        "  __syncthreads();  // all outputs are there\n",
        "",
        _ATTEND.format("head-dim-248 or smollm2 or bf16"),
    ),
    fault(
        "attention.maxima_among_the_outputs",
        "tree_attention/traits.cuh",
        "(Traits::kNumWarps - 1)) +\n",
        "0) +\n",
        _ATTEND.format("head-dim-248 or smollm2 or bf16"),
    ),
    fault(
        "attention.lines_read_after_the_tiles_took_their_place",
        "tree_attention/schedule.cuh",
        "    return Traits::kKeepsLines && p.num_requests <= Traits::kNumThreads\n",
        "    return p.num_requests <= Traits::kNumThreads\n",
        _WORK.format("any_number_of_ctas and 256"),
    ),
    fault(
        "attention.old_maximum_not_rescaled",
        "tree_attention/product.cuh",
        "    state.sum[i] *= rescale;\n",
        "",
        _ATTEND.format("fp16 or bf16"),
    ),
]
