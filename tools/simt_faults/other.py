# SPDX-License-Identifier: Apache-2.0
"""Faults of plan_tree, write_kv and merge_states."""

from __future__ import annotations

from simt_faults.fault import Fault, fault

_ATTEND = "tests/test_tree_attention.py -k 'simt and test_tree_attention and ({})'"
_PLAN = "tests/test_plan_tree.py -k 'simt and ({})'"
_WIDE = "tests/faults/test_a10_wide_offsets.py -k 'simt and {}'"

FAULTS: list[Fault] = [
    fault(
        "plan.ranked_before_the_tour_is_linked",
        "plan_tree/depth_first.cuh",
        "  __syncthreads();  // the tour is linked\n",
        "",
        _PLAN.format("one_tree or chain"),
    ),
    fault(
        "plan.siblings_linked_before_lists_are_empty",
        "plan_tree/depth_first.cuh",
        "  __syncthreads();  // lists are empty\n",
        "",
        _PLAN.format("ragged or thousand"),
    ),
    fault(
        "plan.subtree_one_node_short",
        "plan_tree/depth_first.cuh",
        "    t.subtree_ends[i] = n - behind;\n",
        "    t.subtree_ends[i] = n - behind - 1;\n",
        _ATTEND.format("bf16"),
    ),
    fault(
        "plan.tail_of_rows_not_cleared",
        "plan_tree/plan_tree.cu",
        "    const int owned = first_bad > 0 ? p.node_indptr[first_bad] : 0;\n",
        "    const int owned = p.num_nodes;\n",
        _PLAN.format("capacity"),
    ),
    fault(
        "write.int32_slot_offset",
        "write_kv/write_kv.cu",
        "kv_offset(pool, slot, 0);",
        "static_cast<int>(kv_offset(pool, slot, 0));",
        _WIDE.format("offsets"),
    ),
    fault(
        "write.slot_past_the_pool",
        "write_kv/write_kv.cu",
        "  if (slot < 0 || slot >= int64_t{pool.num_blocks} * pool.block_size) return;\n",
        "  if (slot < 0) return;\n",
        "tests/test_write_kv.py -k 'simt and outside_the_pool'",
    ),
    fault(
        "write.wide_stores_to_narrow_rows",
        "write_kv/write_kv.cu",
        "           rows_aligned(rows, {stride_node, stride_head}, sizeof(From), 16) &&\n",
        "",
        "tests/test_write_kv.py -k 'simt and not_aligned'",
    ),
    fault(
        "merge.empty_state_is_weighed",
        "merge_states/merge_states.cu",
        "    const bool has_a = lse_a != -INFINITY, has_b = lse_b != -INFINITY;\n",
        "    const bool has_a = true, has_b = true;\n",
        "tests/test_merge_states.py -k 'simt and empty_state'",
    ),
]
