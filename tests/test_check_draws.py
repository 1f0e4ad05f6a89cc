# SPDX-License-Identifier: Apache-2.0
"""Which draws each rule takes, and what the refusals say."""

from __future__ import annotations

import pytest
import torch
from support.acceptance import plan_of
from treeattn import reference
from treeattn.sampling import RULE_NAMES, check_draws
from treeattn.tree import DRAWS

LOSSLESS = {
    "deterministic": {"greedy", "target"},
    "iid": {"greedy", "target", "multistep", "block", "traversal"},
    "swor": {"greedy", "target", "swor", "block", "traversal"},
    "mixed": {"greedy", "target"},
    "pruned": {"greedy", "target"},
}


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("rule", RULE_NAMES)
def test_check_draws(rule: str, draws: str) -> None:
    if rule in LOSSLESS[draws] or rule == "typical":
        assert check_draws(rule, draws) == draws
        return
    names = ", ".join(name for name in RULE_NAMES if name in LOSSLESS[draws])
    message = f"rule {rule} takes draws .*got draws='{draws}', .*lossless there: {names}$"
    with pytest.raises(ValueError, match=message):
        check_draws(rule, draws)
    with pytest.raises(ValueError, match=message):
        reference.accept_path(
            torch.zeros(1, 4), torch.zeros(1).int(), plan_of([[-1]]), rule=rule, draws=draws
        )


def test_check_draws_without_draws() -> None:
    defaults = {rule: check_draws(rule, None) for rule in RULE_NAMES if rule != "traversal"}
    assert defaults == {
        "greedy": None, "target": None, "multistep": "iid", "swor": "swor", "block": "iid",
        "typical": None,
    }  # fmt: skip
    with pytest.raises(ValueError, match="rule traversal needs draws, iid or swor, got draws=None"):
        check_draws("traversal", None)
    with pytest.raises(ValueError, match=r"rule must be one of greedy, target, .*got 'best'"):
        check_draws("best", None)
    with pytest.raises(ValueError, match=r"draws must be one of .*, got 'sorted'"):
        check_draws("greedy", "sorted")


def test_draws_of_a_batch() -> None:
    assert check_draws("swor", ["swor", None, "swor"]) == "swor"
    assert check_draws("traversal", ["iid"]) == "iid"
    assert check_draws("multistep", [None]) == check_draws("multistep", []) == "iid"
    assert check_draws("target", ["iid", "deterministic", None]) is None
    with pytest.raises(ValueError, match="rule swor takes draws swor, got draws='deterministic'"):
        check_draws("swor", ["swor", "deterministic"])
    with pytest.raises(ValueError, match="one kind of draws in a call, got iid and swor"):
        check_draws("traversal", ["iid", "swor"])
