# SPDX-License-Identifier: Apache-2.0
"""What accept_path says about draft laws, trees and counts that do not fit, before it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.acceptance import plan_of
from treeattn.ops import accept_path

PLAN = plan_of([[-1, 0, 0], [-1, 0]])
VALID: dict[str, Any] = {
    "logits": torch.zeros(5, 40),
    "tokens": torch.tensor([0, 1, 2, 0, 3]),
    "plan": PLAN,
    "rule": "swor",
    "seeds": 1,
    "draft_probs": torch.full((5, 30), 1 / 30),
    "counts": torch.zeros(2, 4, 3, dtype=torch.int64),
}


@dataclass(frozen=True)
class Breach:
    name: str
    change: dict[str, Any]
    message: str

    def __str__(self) -> str:
        return self.name


IDS = torch.arange(30)
BREACHES = [
    Breach(
        "no_drafts",
        {"draft_probs": None, "temperature": torch.tensor([0.0, 0.5])},
        "rule swor must have draft_probs or draft_logits where temperature > 0, "
        "request 1 has temperature 0.5",
    ),
    Breach(
        "both",
        {"draft_logits": torch.zeros(5, 30)},
        "draft_probs and draft_logits must not both be given",
    ),
    Breach(
        "no_seeds",
        {"seeds": None, "rule": "multistep"},
        "rule multistep must have seeds or uniforms where temperature > 0, request 0 has",
    ),
    Breach(
        "more_columns",
        {"draft_probs": torch.zeros(5, 41)},
        "draft_probs must have at most vocab_size = 40 columns, got 41",
    ),
    Breach(
        "rows",
        {"draft_probs": torch.zeros(4, 30)},
        r"draft_probs must have shape \[num_nodes, draft_vocab_size\] with num_nodes = 5, got",
    ),
    Breach(
        "dtype",
        {"draft_probs": torch.zeros(5, 30).double()},
        "draft_probs must be float32 or bfloat16 or float16, got float64",
    ),
    Breach(
        "logits_dtype",
        {"draft_probs": None, "draft_logits": torch.zeros(5, 30).double()},
        "draft_logits must be float32 or bfloat16 or float16, got float64",
    ),
    Breach(
        "strides",
        {"draft_probs": torch.zeros(30, 5).t()},
        "draft_probs must be contiguous from dimension 1: stride 1 must be 1, got 5",
    ),
    Breach(
        "draft_rows_dtype",
        {"draft_rows": torch.zeros(5, dtype=torch.int64)},
        "draft_rows must be int32, got int64",
    ),
    Breach(
        "draft_rows_shape",
        {"draft_rows": torch.zeros(4).int()},
        r"draft_rows must have shape \[num_nodes\] with num_nodes = 5, got \[4\]",
    ),
    Breach(
        "draft_rows_above",
        {"draft_rows": torch.tensor([0, 1, 5, 0, 3]).int()},
        r"draft_rows\[2\] must be in \[0, 5\), got 5",
    ),
    Breach(
        "draft_rows_below",
        {"draft_rows": torch.tensor([-1, 1, 4, -1, -1]).int()},
        r"draft_rows\[4\] must be in \[0, 5\), got -1",
    ),
    Breach(
        "draft_ids_dtype",
        {"draft_ids": IDS.float()},
        "draft_ids must be int32 or int64, got torch.float32",
    ),
    Breach(
        "draft_ids_shape",
        {"draft_ids": IDS[:29]},
        r"draft_ids must have shape \[draft_vocab_size\] with draft_vocab_size = 30, got \[29\]",
    ),
    Breach(
        "draft_ids_range",
        {"draft_ids": torch.where(IDS == 7, 40, IDS)},
        r"draft_ids\[7\] must be in \[0, 40\), got 40",
    ),
    Breach(
        "draft_ids_negative",
        {"draft_ids": torch.where(IDS == 7, -1, IDS).int()},
        r"draft_ids\[7\] must be in \[0, 40\), got -1",
    ),
    Breach(
        "draft_ids_repeat",
        {"draft_ids": torch.where(IDS == 7, 3, IDS)},
        r"draft_ids must be distinct; draft_ids\[7\] and draft_ids\[3\] are both 3",
    ),
    Breach(
        "siblings",
        {"tokens": torch.tensor([0, 2, 2, 0, 3])},
        r"rule swor with draws='swor' takes siblings with distinct tokens; tokens\[2\] and its "
        r"sibling tokens\[1\] are both 2",
    ),
    Breach(
        "traversal_siblings",
        {"tokens": torch.tensor([0, 2, 2, 0, 3]), "rule": "traversal", "draws": "swor"},
        "rule traversal with draws='swor' takes siblings with distinct tokens",
    ),
    Breach(
        "chain",
        {"rule": "block"},
        r"rule block takes chains only, parents\[i\] == i - 1; request 0 has parents\[2\] = 0",
    ),
    Breach(
        "traversal_draws",
        {"rule": "traversal"},
        "rule traversal needs draws, iid or swor, got draws=None",
    ),
    Breach(
        "biased",
        {"rule": "multistep", "draws": "swor"},
        "rule multistep takes draws iid, got draws='swor', under which it is biased; lossless "
        "there: greedy, target, swor, block, traversal",
    ),
    Breach(
        "counts_dtype",
        {"counts": torch.zeros(2, 4, 3)},
        "counts must be int64, got float32",
    ),
    Breach(
        "counts_shape",
        {"counts": torch.zeros(3, 4, 3, dtype=torch.int64)},
        r"counts must have shape \[2, num_depths, num_ranks\] .*got \[3, 4, 3\]",
    ),
]


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_errors(breach: Breach) -> None:
    accept_path(**VALID)
    before = VALID["counts"].clone()
    with pytest.raises(ValueError, match=f"accept_path: {breach.message}"):
        accept_path(**{**VALID, **breach.change})
    assert torch.equal(VALID["counts"], before)


def test_padding_may_name_any_row_and_repeat() -> None:
    accept_path(
        **{
            **VALID,
            "tokens": torch.tensor([0, -1, -1, 0, 99]),
            "draft_rows": torch.full((5,), 2**31 - 1).int(),
        }
    )


def test_siblings_of_different_rows_may_hold_one_token() -> None:
    tokens = torch.tensor([0, 2, 2, 0, 3])
    accept_path(**{**VALID, "tokens": tokens, "draft_rows": torch.tensor([0, 1, 2, 0, 3]).int()})


def test_rules_without_drafts_do_not_look_at_them() -> None:
    for rule in ("greedy", "target", "typical"):
        accept_path(**{**VALID, "rule": rule, "draft_probs": torch.zeros(1, 99).double()})


def test_draft_rows_may_be_more_or_fewer_than_nodes() -> None:
    for count in (1, 9):
        accept_path(
            **{
                **VALID,
                "draft_probs": torch.full((count, 40), 1 / 40),
                "draft_rows": torch.full((5,), count - 1).int(),
            }
        )
