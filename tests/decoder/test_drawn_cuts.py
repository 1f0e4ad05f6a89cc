# SPDX-License-Identifier: Apache-2.0
"""Drawn trees that a policy cuts: what is emitted keeps the target's law.

A toy language of three tokens: the target and the drafter are Markov chains, so that the law of
what follows the root is known, and every case is decided by thousands of drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from treeattn.cost_file import CostTables
from treeattn.decoder.drafters.drawn import DraftLaws, DrawnTree, grow
from treeattn.decoder.proposal import propose
from treeattn.decoder.request import Request
from treeattn.decoder.sampling import Sampling
from treeattn.plan import plan_tree
from treeattn.schedule import Online, Policy, Verdict
from treeattn.schedule.learned import DEPTHS, RANKS
from treeattn.tree import DraftTree, pack

V, NUM_DRAFTS = 3, 1500
TARGET = torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.25, 0.25], [0.1, 0.6, 0.3]])
FULL = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.3, 0.4], [0.6, 0.2, 0.2]])
# After token 0 the drafter knows of one successor only.
SHORT = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.6, 0.2, 0.2]])[[1, 0, 2]]
ROOT = 1  # has three successors in either
BUSH = (2, 2, 0, 0, 0)  # children, level by level: two, and two below the first
BROOM = (3, 1, 1, 0, 1, 0, 0)
CHAIN = (1, 1, 1, 0)


class Toy:
    """Draws trees of one shape from a table of laws."""

    def __init__(self, law: Tensor, shape: tuple[int, ...]) -> None:
        self._law, self._shape = law, shape

    def draw(
        self,
        requests: Sequence[Request],
        num_nodes: int,
        shape: str,
        *,
        draws: str,
        temperature: float,
    ) -> tuple[list[DraftTree | None], DraftLaws]:
        drawn = {
            request: DrawnTree(
                request.tokens[-1],
                self._shape,
                draws=draws,
                temperature=temperature,
                generator=torch.Generator().manual_seed(request.seed),
            )
            for request in requests
        }
        return grow(requests, drawn, self._log_probs)

    def _log_probs(self, requests: list[Request], trees: list[DraftTree]) -> list[Tensor]:
        return [self._law[torch.from_numpy(tree.tokens.copy())].log() for tree in trees]

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        raise AssertionError("asked to propose")

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass


def policy(verify: dict[int, float], trust: Sequence[Sequence[float]]) -> Policy:
    """Trust by depth and rank; deeper nodes and later siblings as the last."""
    seen = np.zeros((DEPTHS, RANKS))
    for depth in range(DEPTHS):
        row = trust[min(depth, len(trust) - 1)]
        seen[depth] = [row[min(rank, len(row) - 1)] for rank in range(RANKS)]
    return Policy(
        {1: Verdict("tree", 8, 0.0, 1.0, 2.0)},
        CostTables(verify=tuple((rows, 1000, ms) for rows, ms in verify.items())),
        "toy",
        learned={"said": np.full((DEPTHS, RANKS), 1e6).tolist(), "seen": (1e6 * seen).tolist()},
    )


def drafts(
    drafter: Toy, sampling: Sampling, online: Online
) -> tuple[list[Request], list[DraftTree], DraftLaws]:
    """NUM_DRAFTS first steps of requests that are alone in their batches."""
    requests, trees, laws = [], [], []
    for seed in range(NUM_DRAFTS):
        request = Request(seq=seed, tokens=[2, ROOT], limit=40, seed=seed)
        proposal = propose(drafter, [request], sampling, online)
        assert proposal.laws is not None
        online.release(request)
        requests.append(request)
        trees += proposal.trees
        laws += proposal.laws.probs
    return requests, trees, DraftLaws(laws)


def emitted(rule: str, drafter: Toy, online: Online) -> tuple[Tensor, list[DraftTree]]:
    """[NUM_DRAFTS, D + 1] tokens after the root, and the trees that were verified."""
    sampling = Sampling(rule, temperature=1.0)
    requests, trees, laws = drafts(drafter, sampling, online)
    batch = pack(trees)
    plan = plan_tree(
        batch.parents,
        batch.node_indptr,
        torch.ones(len(trees), dtype=torch.int32),
        torch.arange(len(trees), dtype=torch.int32)[:, None],
        block_size=16,
        num_qo_heads=1,
        num_kv_heads=1,
    )
    accepted = sampling.accept(TARGET[batch.tokens].log(), batch, plan, requests, laws)
    assert (accepted.status == 0).all()
    return accepted.emitted, trees


def p_value(tokens: Tensor) -> float:
    """Of the pairs of neighbours, chi-square against TARGET; the root comes before them.

    What a step did not emit is drawn from the target: how far it comes depends on its tokens.
    """
    tokens = torch.cat((torch.full((len(tokens), 1), ROOT), tokens), 1)
    for at in range(1, tokens.shape[1]):
        following = torch.multinomial(TARGET[tokens[:, at - 1]], 1)[:, 0]
        tokens[:, at] = torch.where(tokens[:, at] < 0, following, tokens[:, at])
    neighbours = tokens[:, :-1] * V + tokens[:, 1:]
    pairs = torch.bincount(neighbours.flatten(), minlength=V * V).reshape(V, V).double()
    expected = pairs.sum(1, keepdim=True) * TARGET.double()
    cells = expected > 5
    statistic = ((pairs - expected)[cells] ** 2 / expected[cells]).sum()
    degrees = cells.sum() - (cells.any(1)).sum()
    return float(torch.special.gammaincc(degrees.double() / 2, statistic / 2))


# Two nodes below the root pay only with a full fan below the first: 2.01 tokens in 18 ms.
FAN_OR_NOTHING = policy({1: 10.0, 5: 18.0}, [[0.3, 0.2], [0.9, 0.8]])
# Rows 4 and 6 are steps; four nodes of the broom are taken, the third child is not.
STAIRS = policy({1: 10.0, 2: 11.0, 4: 12.0, 5: 16.0, 7: 30.0}, [[0.5, 0.3, 0.1], [0.6]])
CASES = [
    ("swor", BROOM, STAIRS),
    ("traversal", BROOM, STAIRS),
    ("multistep", BROOM, STAIRS),
    ("block", CHAIN, STAIRS),
]


@pytest.mark.parametrize(("rule", "shape", "by"), CASES)
def test_the_law_is_kept(rule: str, shape: tuple[int, ...], by: Policy) -> None:
    """Three of seven nodes are never verified; and of a chain all are."""
    tokens, trees = emitted(rule, Toy(FULL, shape), Online(by, chains_only=rule == "block"))
    assert {len(tree) for tree in trees} == {4}
    assert (tokens[:, 1] >= 0).float().mean() > 0.2  # drafts are accepted
    assert p_value(tokens) > 1e-4


@pytest.mark.parametrize("rule", ["swor", "traversal"])
@pytest.mark.parametrize("law", [FULL, SHORT], ids=["full", "short"])
def test_laws_with_fewer_tokens_than_the_tree_has_room_for(rule: str, law: Tensor) -> None:
    """Whether the first child stays must not depend on how many children its token allows."""
    tokens, trees = emitted(rule, Toy(law, BUSH), Online(FAN_OR_NOTHING))
    assert {len(tree) for tree in trees} == ({5} if law is FULL else {4, 5})
    assert all((tree.tokens >= 0).all() for tree in trees)
    assert p_value(tokens) > 1e-4


class ByToken(Online):
    """Keeps the first child only when it is not token 0: biased, and so it must be seen."""

    def cut(self, requests, trees):  # type: ignore[no-untyped-def]
        kept = super().cut(requests, trees)
        return [
            tree.keep(tree.depths == 0) if len(tree) > 1 and tree.tokens[1] == 0 else tree
            for tree in kept
        ]


@pytest.mark.parametrize(("rule", "shape", "by"), CASES)
def test_a_cut_by_tokens_is_seen(rule: str, shape: tuple[int, ...], by: Policy) -> None:
    tokens, _ = emitted(rule, Toy(FULL, shape), ByToken(by, chains_only=rule == "block"))
    assert p_value(tokens) < 1e-4
