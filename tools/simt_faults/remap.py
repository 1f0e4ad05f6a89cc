# SPDX-License-Identifier: Apache-2.0
"""Faults of remap_kv."""

from __future__ import annotations

from simt_faults.fault import Fault, fault

_REMAP = "tests/test_remap_kv.py -k 'simt and {}'"
_WIDE = "tests/faults/test_a10_wide_offsets.py -k 'simt and {}'"

FAULTS: list[Fault] = [
    fault(
        "remap.claims_not_waited_for",
        "remap_kv/kernel.cuh",
        "  __syncthreads();  // this CTA's claims are made\n",
        "",
        "tests/test_remap_kv_device.py -k 'status_4 and shared_block and one_cta'",
    ),
    fault(
        "remap.crossing_moves_in_any_order",
        "remap_kv/move_rows.cuh",
        "  const bool is_ordered = load_global(w.is_ordered()) != 0;\n",
        "  const bool is_ordered = false;\n",
        _REMAP.format("custom_slots"),
    ),
    fault(
        "remap.first_cta_orders_the_moves",
        "remap_kv/kernel.cuh",
        "!= roles.num_planners() - 1) return;",
        "!= 0) return;",
        "tests/test_remap_kv_device.py -k 'one_launch and many_custom'",
    ),
    fault(
        "remap.arrivals_are_left",
        "remap_kv/kernel.cuh",
        "    store_global(header.arrived(), 0);\n",
        "",
        "tests/test_remap_kv_device.py -k 'one_after_the_other'",
    ),
    fault(
        "remap.claims_are_left",
        "remap_kv/kernel.cuh",
        "    store_global(header.claimed(), 0);  // checkers, who read it, have all arrived\n",
        "",
        "tests/test_remap_kv_device.py -k 'one_after_the_other and planners'",
    ),
    fault(
        "remap.tickets_are_not_counted_anew",
        "remap_kv/roles.cuh",
        "    if (ticket - turn == gridDim.x - 1) {\n",
        "    if (ticket - turn == gridDim.x) {\n",
        "tests/test_remap_kv_device.py -k 'one_after_the_other'",
    ),
    fault(
        "remap.turn_does_not_change",
        "remap_kv/roles.cuh",
        "turn ^ RemapHeader::kTurnBit);",
        "turn);",
        "tests/test_remap_kv_device.py -k 'one_after_the_other'",
    ),
    fault(
        "remap.movers_start_first",
        "remap_kv/roles.cuh",
        "  return {.number = static_cast<int>(s.ticket & ",
        "  return {.number = static_cast<int>(gridDim.x - 1 - s.ticket & ",
        _REMAP.format("test_remap_kv"),
    ),
    fault(
        "remap.lists_packed_with_gaps",
        "remap_kv/plan_request.cuh",
        "      const int at = num_moves + __popc(lanes & ((1u << lane) - 1));\n",
        "      const int at = num_moves + __popc(lanes & ((2u << lane) - 1));\n",
        _REMAP.format("test_remap_kv"),
    ),
    fault(
        "remap.int32_block_offset",
        "remap_kv/move_rows.cuh",
        "column + block * plane.stride_block +",
        "column + static_cast<int>(block * plane.stride_block) +",
        _WIDE.format("offsets"),
    ),
]
