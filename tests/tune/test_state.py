# SPDX-License-Identifier: Apache-2.0
"""What was measured survives the end of the run, however it came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from treeattn.tune.state import Measured

ABOUT = {"model": "m", "seed": 0, "batch_sizes": (1, 4)}


def never() -> Any:
    raise AssertionError("measured again")


def test_what_is_on_disk_is_not_measured_again(tmp_path: Path) -> None:
    first = Measured(tmp_path / "m", ABOUT)
    assert "a" not in first and len(first) == 0
    assert first.get("a", lambda: 1.5) == 1.5
    assert first.get("a", never) == 1.5
    again = Measured(tmp_path / "m", ABOUT)
    assert "a" in again and len(again) == 1
    assert again.get("a", never) == 1.5
    assert again.get("b", lambda: None) is None
    assert Measured(tmp_path / "m", ABOUT).get("b", never) is None


def test_a_result_is_the_same_now_and_after_a_restart(tmp_path: Path) -> None:
    """Tuples are lists and keys are strings from the start, and numbers keep every digit."""
    result = {
        1: (1, 2.0, True),
        "x": [None, 0.1 + 0.2, 1e-300, float("inf")],
        "s": "\u00e9\u2028\n",
    }
    as_json = {"1": [1, 2.0, True], "x": [None, 0.1 + 0.2, 1e-300, float("inf")], "s": result["s"]}
    now = Measured(tmp_path / "m", ABOUT).get("k", lambda: result)
    later = Measured(tmp_path / "m", ABOUT).get("k", never)
    assert now == later == as_json
    assert [type(value) for value in later["1"]] == [int, float, bool]


def test_nothing_is_kept_of_a_measurement_that_fails(tmp_path: Path) -> None:
    measured = Measured(tmp_path / "m", ABOUT)
    with pytest.raises(KeyboardInterrupt):
        measured.get("a", _interrupted)
    assert "a" not in measured
    assert Measured(tmp_path / "m", ABOUT).get("a", lambda: 2) == 2


def _interrupted() -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_half_written_last_line_is_dropped(cut: int, tmp_path: Path) -> None:
    file = tmp_path / "m"
    measured = Measured(file, ABOUT)
    measured.get("a", lambda: 1)
    whole = file.read_bytes()
    measured.get("b", lambda: [2, 3])
    line = file.read_bytes()[len(whole) :]
    assert len(line) == 14
    file.write_bytes(whole + line[:cut])

    resumed = Measured(file, ABOUT)
    assert resumed.get("a", never) == 1
    if cut < 13:  # at 13 the line lacks its end only
        assert file.read_bytes() == whole and "b" not in resumed
    assert resumed.get("b", lambda: [2, 3]) == [2, 3]
    assert file.read_bytes() == whole + line


def test_reading_it_again_never_loses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed while it starts leaves the file as it was."""
    file = tmp_path / "m"
    Measured(file, ABOUT).get("a", lambda: 1)
    write = Path.write_text

    def killed(path: Path, text: str, **options: Any) -> int:
        write(path, text[:5], **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            Measured(file, ABOUT)
    assert Measured(file, ABOUT).get("a", never) == 1


def test_a_file_of_another_run_says_in_what_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "m"
    Measured(file, ABOUT).get("a", lambda: 1)
    with pytest.raises(
        ValueError, match=r"seed was 0, now it is 7; threads was None, now it is 2$"
    ):
        Measured(file, {**ABOUT, "seed": 7, "threads": 2})
    with pytest.raises(ValueError, match=r"m is of another run; remove it, or name another --out"):
        Measured(file, {})
    assert Measured(file, ABOUT).get("a", never) == 1


@pytest.mark.parametrize(
    "content", [b"{}\n", b"hello\n", b'{"treeattn_policy": 1}\n', b"\xff\xfe\n"]
)
def test_a_file_of_something_else_is_left_alone(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "m"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"m does not hold what a tuning run measured"):
        Measured(file, ABOUT)
    assert file.read_bytes() == content
