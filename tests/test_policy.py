# SPDX-License-Identifier: Apache-2.0
"""Policy files: whole or not at all, readable by people, and what is wrong is named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from treeattn.cost_file import CostTables
from treeattn.schedule import LearnedAcceptance, Policy, Verdict
from treeattn.schedule.learned import DEPTHS, RANKS
from treeattn.schedule.policy import _readable

COUNTS = {
    "said": [[10.0 - depth - rank / 4 for rank in range(RANKS)] for depth in range(DEPTHS)],
    "seen": [[7.5 - depth / 2 - rank for rank in range(RANKS)] for depth in range(DEPTHS)],
}
POLICY = Policy(
    verdicts={
        1: Verdict("tree", 16, 0.75, 1.5, 1.9),
        4: Verdict("chain", 4, 1.25, 0.8, 1.2),
        16: Verdict("off", 1, 0.0, 0.0, 1.0),
    },
    costs=CostTables(
        verify=((1.0, 128.0, 10.0), (16.0, 128.0, 1e-05)),
        draft=((1.0, 1.0, 0.5),),
        about={"verify": "measured"},
    ),
    drafter="suffix",
    learned=COUNTS,
    max_step_ms=40.0,
    about={"model": 'a "model" [1,2]', "prompts": ["code", "[ 3 ,4]"], "seed": 0},
)
MISSING = SimpleNamespace()  # its text, unlike an object's, is the same in every process


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    POLICY.save(path)
    assert Policy.load(path) == POLICY
    assert Policy.load(str(path)).max_nodes == 16
    assert [file.name for file in tmp_path.iterdir()] == ["policy.json"]
    bare = Policy({2: Verdict("tree", 3, 0.1, 0.5, 1.1)}, POLICY.costs, "lookup")
    bare.save(path)  # in place of the other
    assert Policy.load(path) == bare


def test_people_can_read_it(tmp_path: Path) -> None:
    """A row of numbers is a line."""
    POLICY.save(tmp_path / "policy.json")
    lines = (tmp_path / "policy.json").read_text(encoding="utf-8").splitlines()
    stripped = [line.strip() for line in lines]
    assert "[1.0, 128.0, 10.0]," in stripped
    assert "[16.0, 128.0, 1e-05]" in stripped
    assert "[10.0, 9.75, 9.5, 9.25]," in stripped
    assert '"drafter": "suffix",' in stripped
    assert max(map(len, lines)) <= 80
    assert len(lines) < 100


@given(
    st.recursive(
        st.text('[]"\\ ,1e-\n') | st.integers() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('[]"\\1,'), inner),
    )
)
def test_readable_json_says_the_same(data: Any) -> None:
    assert json.loads(_readable({"": data})) == {"": data}


@pytest.mark.parametrize(
    ("batch_size", "entry"), [(1, 1), (2, 4), (4, 4), (5, 16), (16, 16), (17, 16), (1000, 16)]
)
def test_the_verdict_of_the_next_larger_batch(batch_size: int, entry: int) -> None:
    assert POLICY.verdict(batch_size) is POLICY.verdicts[entry]


def test_verdicts_in_any_order() -> None:
    turned = Policy(dict(reversed(POLICY.verdicts.items())), POLICY.costs, "suffix")
    assert turned.verdict(2) is POLICY.verdicts[4]
    assert turned.verdict(99) is POLICY.verdicts[16]


def test_gain() -> None:
    gains = [Verdict("tree", 2, 0.0, 0.0, speedup).gain for speedup in (2.0, 1.25, 1.0, 0.5, 0.0)]
    assert gains == pytest.approx([0.5, 0.2, 0.0, 0.0, 0.0])


def test_requests_start_from_what_was_learned() -> None:
    first, second = POLICY.fresh(), POLICY.fresh()
    expected = LearnedAcceptance(COUNTS["said"], COUNTS["seen"]).trust
    assert (first.trust == expected).all()
    assert first is not second
    assert (POLICY.fresh().trust != LearnedAcceptance().trust).any()


def with_(**changes: Any) -> dict[str, Any]:
    """POLICY's file with other entries; a name may lead to one below, as in verdicts__1__shape."""
    data: dict[str, Any] = json.loads(_readable(_as_json()))
    for name, value in changes.items():
        *folders, last = name.split("__")
        place = data
        for folder in folders:
            place = place[folder]
        if value is MISSING:
            del place[last]
        else:
            place[last] = value
    return data


def _as_json() -> dict[str, Any]:
    verdicts = {str(size): vars(verdict).copy() for size, verdict in POLICY.verdicts.items()}
    return {
        "treeattn_policy": 1,
        "about": dict(POLICY.about),
        "drafter": POLICY.drafter,
        "max_step_ms": POLICY.max_step_ms,
        "verdicts": verdicts,
        "learned": COUNTS,
        "costs": POLICY.costs.to_json(),
    }


def test_the_file_as_it_is_documented(tmp_path: Path) -> None:
    POLICY.save(tmp_path / "policy.json")
    assert json.loads((tmp_path / "policy.json").read_text(encoding="utf-8")) == _as_json()
    assert Policy.from_json(_as_json()) == POLICY


NEGATIVE = [[-1.0] * RANKS] * DEPTHS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"treeattn_policy": 2}, "treeattn_policy must be version 1, got 2"),
        ({"treeattn_policy": MISSING}, "treeattn_policy must be version 1, got None"),
        ({"verdicts": MISSING}, "a policy must have verdicts, got treeattn_policy, about"),
        ({"costs": MISSING}, "a policy must have costs"),
        ({"drafter": MISSING}, "a policy must have drafter"),
        ({"verdicts": {}}, "verdicts must be given for batch sizes >= 1, got []"),
        ({"verdicts": {"0": POLICY.verdicts[1].__dict__}}, "for batch sizes >= 1, got [0]"),
        ({"verdicts": {"many": POLICY.verdicts[1].__dict__}}, "'many'"),
        ({"verdicts__1__shape": "bush"}, "shape must be one of tree, chain, off, got 'bush'"),
        ({"verdicts__1__num_nodes": 0}, "num_nodes must be a whole number >= 1, the root counts"),
        ({"verdicts__1__num_nodes": 2.5}, "num_nodes must be a whole number >= 1"),
        ({"verdicts__1__num_nodes": "4"}, "num_nodes must be a whole number >= 1"),
        ({"verdicts__4__draft_ms": -0.5}, "draft_ms must be a number >= 0, got -0.5"),
        ({"verdicts__4__accepted": -1}, "accepted must be a number >= 0, got -1"),
        ({"verdicts__4__speedup": math.nan}, "speedup must be a number >= 0, got nan"),
        ({"verdicts__4__speedup": MISSING}, "speedup"),
        ({"verdicts__4__colour": 1}, "colour"),
        ({"max_step_ms": -3.0}, "max_step_ms must be > 0, got -3.0"),
        ({"max_step_ms": 0}, "max_step_ms must be > 0, got 0"),
        ({"learned__said": NEGATIVE}, "said must be [8, 4] counts >= 0, got [[-1.0"),
        ({"learned__seen": [[1.0]]}, "seen must be [8, 4] counts >= 0, got [[1.0]]"),
        ({"learned__seen": MISSING}, "said and seen go together"),
        ({"costs__verify": [[1, 2]]}, "verify must hold points (rows, context, ms)"),
        ({"costs__draft": [[-1, 1, 2.0]]}, "draft must have whole numbers >= 1"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(with_(**changes)), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        Policy.load(path)
    assert str(error.value).startswith(f"policy {path}: ")
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"treeattn_policy": 1, "verdicts": 3'])
def test_unreadable_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    with pytest.raises(FileNotFoundError):
        Policy.load(path)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"policy {path}: "):
        Policy.load(path)


def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.json"
    POLICY.save(path)
    other = Policy({1: Verdict("off", 1, 0.0, 0.0, 1.0)}, POLICY.costs, "suffix")

    def full(self: Path, text: str, encoding: str) -> int:
        with self.open("w", encoding=encoding) as file:
            file.write(text[: len(text) // 2])
        raise OSError("No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            other.save(path)
    assert Policy.load(path) == POLICY

    unwritable = Policy(other.verdicts, other.costs, "suffix", about={"when": object()})
    with pytest.raises(TypeError):
        unwritable.save(path)
    assert Policy.load(path) == POLICY
    other.save(path)
    assert Policy.load(path) == other
