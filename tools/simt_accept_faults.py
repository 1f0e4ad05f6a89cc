# SPDX-License-Identifier: Apache-2.0
"""The faults of tools/simt_faults.py that go into accept_path."""

from __future__ import annotations

from simt_fault import fault as _fault

_ACCEPT = "tests/test_accept_path.py -k 'simt and {}'"
_TRIALS = "tests/test_accept_path_drafts.py -k 'simt and {}'"
_WIDE = "tests/faults/test_a10_wide_offsets.py -k 'simt and {}'"

ACCEPT_FAULTS = [
    _fault(
        "accept.missing_barrier_in_max",
        "accept_path/cta_scan.cuh",
        "  if (lane_of_thread() == 0) warp_sums[warp_of_thread()] = value;\n"
        "  __syncthreads();  // warp_sums are complete\n",
        "  if (lane_of_thread() == 0) warp_sums[warp_of_thread()] = value;\n",
        _ACCEPT.format("greedy_1000_float32"),
    ),
    _fault(
        "accept.missing_barrier_in_prefix",
        "accept_path/cta_scan.cuh",
        "  if (lane_of_thread() == kWarpSize - 1) warp_sums[warp_of_thread()] = inclusive;\n"
        "  __syncthreads();  // warp_sums are complete\n",
        "  if (lane_of_thread() == kWarpSize - 1) warp_sums[warp_of_thread()] = inclusive;\n",
        _ACCEPT.format("target_1000_float32"),
    ),
    _fault(
        "accept.bins_used_before_all_are_clear",
        "accept_path/row_cut.cuh",
        "    __syncthreads();  // bins are empty\n",
        "",
        _ACCEPT.format("target_1000_bfloat16"),
    ),
    _fault(
        "accept.tie_goes_to_a_later_id",
        "accept_path/row_choice.cuh",
        "      if (x > best) {\n",
        "      if (x >= best) {\n",
        _ACCEPT.format("greedy_1000_bfloat16"),
    ),
    _fault(
        "accept.racy_choice_of_a_child",
        "accept_path/walk.cuh",
        "    atomicMin(child, i);\n",
        "    *child = i;\n",
        _ACCEPT.format("siblings_with_one_token"),
    ),
    _fault(
        "accept.unmasked_tail_of_a_row",
        "accept_path/row.cuh",
        "if (id + i >= 0 && id + i < vocab_size) elements[i]",
        "if (id + i >= 0) elements[i]",
        _ACCEPT.format("greedy_31_float16"),
    ),
    _fault(
        "accept.off_by_one_chunk",
        "accept_path/row.cuh",
        "    num_chunks = (num_vecs + kChunkVecs - 1) / kChunkVecs;\n",
        "    num_chunks = num_vecs / kChunkVecs;\n",
        _ACCEPT.format("greedy_1000_float32"),
    ),
    _fault(
        "accept.mask_of_a_row_that_begins_early",
        "accept_path/row.cuh",
        "    return static_cast<uint32_t>(id < 0 ? bits << -id : bits);\n",
        "    return static_cast<uint32_t>(bits);\n",
        _ACCEPT.format("one_id_is_allowed"),
    ),
    _fault(
        "accept.follow_reads_before_the_barrier",
        "accept_path/kernel.cuh",
        "  __syncthreads();  // children are there, and the outputs are cleared before they are",
        "  //",
        _ACCEPT.format("greedy_5_float32"),
    ),
    _fault(
        "accept.one_level_too_deep",
        "accept_path/kernel.cuh",
        "    if (child < 0 || depth == p.max_depth) {\n",
        "    if (child < 0) {\n",
        "tests/test_accept_path_rows.py -k 'simt and depth_of_the_plan'",
    ),
    _fault(
        "accept.int32_row_offset",
        "accept_path/row.cuh",
        "row_idx * p.stride_logits,",
        "static_cast<int>(row_idx * p.stride_logits),",
        _WIDE.format("logits"),
    ),
    _fault(
        "accept.states_read_before_they_have_changed",
        "accept_path/trial_rows.cuh",
        "    if (threadIdx.x == 0) f();\n    __syncthreads();  // the states have changed\n",
        "    if (threadIdx.x == 0) f();\n",
        _TRIALS.format("traversal_iid_33_float32"),
    ),
    _fault(
        "accept.segments_summed_before_they_are_complete",
        "accept_path/residual.cuh",
        "    __syncthreads();  // segment sums are complete\n",
        "",
        _TRIALS.format("swor_1000_float32"),
    ),
    _fault(
        "accept.no_token_leaves_the_draft",
        "accept_path/residual.cuh",
        "if (loses && weight > 0 && !was_tried(leader, id)) left += weight;",
        "if (loses && weight > 0) left += weight;",
        "tests/test_acceptance_op_laws_device.py -k 'simt-forward and test_lossless and swor'",
    ),
    _fault(
        "accept.residual_of_a_masked_id",
        "accept_path/residual.cuh",
        "    return allowed ? kept.weight",
        "    return true ? kept.weight",
        "tests/faults/test_a26_trials.py -k 'simt and only_allowed'",
    ),
    _fault(
        "accept.a_bad_draft_row_is_used",
        "accept_path/draft_row.cuh",
        "    if (highest == kBad) return false;\n",
        "",
        "tests/faults/test_a05_trial_rows.py -k 'simt and bad_draft_rows'",
    ),
    _fault(
        "accept.draft_ids_of_the_last_call",
        "accept_path/columns.cuh",
        "  if (id < vocab_size) store_global(columns + id, -1);\n",
        "",
        "tests/test_accept_path_drafts.py -k 'simt and reduced'",
    ),
    _fault(
        "accept.counts_ranks_from_each_512_nodes_on",
        "accept_path/counts.cuh",
        "      rank += children.total;\n",
        "",
        "tests/test_accept_path_drafts.py -k 'simt and counts_of_a_wide_tree'",
    ),
]
