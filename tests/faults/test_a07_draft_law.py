# SPDX-License-Identifier: Apache-2.0
"""A07: the q of the acceptance ratio is the law that the drafts were sampled from."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from support.acceptance import plan_of
from support.enumerate import Emitted, Tokens, Toy, branching, emitted, iid, swor
from torch import Tensor
from treeattn import reference
from treeattn.reference import rules


def always(*masses: float) -> Tensor:
    return torch.tensor(masses, dtype=torch.float64)


def constant(target: Tensor, draft: Tensor) -> Toy:
    return Toy(len(target), lambda history: target, (lambda history: draft,))


def first_token(result: Emitted) -> list[float]:
    law = [0.0] * result.toy.vocab_size
    for tokens, weight in result.weights.items():
        law[tokens[0]] += weight
    return law


P, FILTERED, RAW = always(0.7, 0.2, 0.1), always(0.5, 0.5, 0), always(0.35, 0.35, 0.3)


@pytest.mark.parametrize("name", ["multistep", "swor", "block", "traversal"])
def test_filtered_draft(name: str) -> None:
    """Drawn from [.5, .5, 0]; the raw [.35, .35, .3] in the ratio shifts the law."""

    def rule(step: rules.Step, path: list[int]) -> int:
        chosen = getattr(rules, name)
        return chosen(step, path, swor=False) if name == "traversal" else chosen(step, path)

    right = emitted(constant(P, FILTERED), [-1, 0], iid, rule)
    assert first_token(right) == pytest.approx(P.tolist(), abs=1e-12)

    def drawn_filtered(laws: list[list[float]], rows: list[int]) -> dict[Tokens, float]:
        return iid([FILTERED.tolist()], rows)

    wrong = emitted(constant(P, RAW), [-1, 0], drawn_filtered, rule)
    assert first_token(wrong) == pytest.approx([5 / 7, 2 / 7, 0], abs=1e-12)


def test_siblings_without_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    p = always(0.5, 0.3, 0.2, 0)
    model = constant(p, always(0.4, 0.4, 0.1, 0.1))
    right = emitted(model, branching(2), swor, rules.swor)
    assert first_token(right) == pytest.approx(p.tolist(), abs=1e-12)
    assert right.mean_length() - 1 == pytest.approx(0.83 / 0.9, abs=1e-12)  # 0.92222
    monkeypatch.setattr(rules, "without", lambda draft, token: draft)
    wrong = first_token(emitted(model, branching(2), swor, rules.swor))
    assert wrong == pytest.approx([0.5233, 0.3, 0.1767, 0], abs=5e-5)


def test_deterministic_children() -> None:
    """Accept 0 with 0.5, then 1 with 0.6, else emit 2; ten equally likely draws show it."""
    count = 10
    midpoints = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    got = reference.accept_path(
        always(0.5, 0.3, 0.2).log().repeat(3 * count, 1),
        torch.tensor([2, 0, 1] * count),
        plan_of([[-1, 0, 0]] * count),
        rule="target",
        draws="deterministic",
        uniforms=torch.stack([torch.zeros(3 * count), midpoints.repeat_interleave(3)], 1),
    )
    seen = Counter(zip(got.path[:, 1].tolist(), got.emitted[:, 0].tolist(), strict=True))
    assert seen == {(1, 0): 5, (2, 1): 3, (-1, 2): 2}


@pytest.mark.parametrize(("rule", "draws"), [("multistep", "iid"), ("traversal", "iid")])
def test_filtered_draft_through_the_whole_step(rule: str, draws: str) -> None:
    """The same as the first, by accept_path itself: all midpoints of coins and draws."""
    coins, places = 10, 30
    requests = [(x, c, u) for x in (0, 1) for c in range(coins) for u in range(places)]
    logits = P.log().repeat(2 * len(requests), 1)
    uniforms = torch.zeros(2 * len(requests), 2, dtype=torch.float64)
    uniforms[0::2, 1] = torch.tensor([(u + 0.5) / places for _, _, u in requests])
    uniforms[1::2, 0] = torch.tensor([(c + 0.5) / coins for _, c, _ in requests])
    got = reference.accept_path(
        logits,
        torch.tensor([[9, x] for x, _, _ in requests]).flatten(),
        plan_of([[-1, 0]] * len(requests)),
        rule=rule,
        draws=draws,
        draft_probs=FILTERED[:2].repeat(2 * len(requests), 1),  # Vq = 2 of V = 3
        uniforms=uniforms,
    )
    shares = got.emitted[:, 0].bincount(minlength=3) / len(requests)
    assert shares.tolist() == pytest.approx(P.tolist(), abs=1e-6)
