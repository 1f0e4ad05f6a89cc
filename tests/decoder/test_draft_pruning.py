# SPDX-License-Identifier: Apache-2.0
"""Drafts that stop while they are drafted: fewer passes, fewer rows, the same output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from support.eagle import related_decoder, save_head
from support.tiny import Scripted, char_tokenizer, plain, random_tree, tiny_decoder
from treeattn.cost_file import CostTables
from treeattn.decoder import Decoder, Drafter, EagleDraft, LayerSkip, Request
from treeattn.decoder.drafters import DraftModel, DraftsByLevel, draft_model, layer_skip
from treeattn.decoder.drafters.levels import Worth
from treeattn.decoder.eagle_head import EagleHead
from treeattn.decoder.engine import Engine
from treeattn.decoder.forward import prefill
from treeattn.decoder.sampling import Sampling
from treeattn.schedule import Fixed, Online, Policy, Schedule, Verdict
from treeattn.schedule.levels import Frontier
from treeattn.schedule.online import Drafting
from treeattn.tree import DraftTree

PROMPTS = [[4, 8, 15, 16, 23], list(range(40)), [7], [9, 9, 2] * 4]
NUM_NODES = 12
Make = Callable[[Path], tuple[Decoder, Drafter]]


def skipping(folder: Path) -> tuple[Decoder, LayerSkip]:
    """All layers: whatever is drafted at rank 0 is right."""
    decoder = tiny_decoder(num_blocks=256)
    assert decoder._cache is not None
    return decoder, LayerSkip(decoder.model, decoder._cache, num_layers=2)


def smaller_model(folder: Path) -> tuple[Decoder, DraftModel]:
    """The same model, on KV of its own."""
    decoder = tiny_decoder(num_blocks=256, tokenizer=char_tokenizer())
    return decoder, tiny_decoder(tokenizer=char_tokenizer()).as_drafter_for(decoder, num_blocks=256)


def head(folder: Path) -> tuple[Decoder, EagleDraft]:
    decoder = related_decoder(num_blocks=256)
    return decoder, decoder.load_draft_head(save_head(folder), top_k=3, depth=4, num_blocks=256)


every_drafter = pytest.mark.parametrize(
    "make", [skipping, smaller_model, head], ids=lambda make: make.__name__
)


@dataclass(eq=False)
class Watched:
    """Passes on to `inner`; keeps the trees, by sequence and length."""

    inner: Drafter
    trees: dict[tuple[int, int], DraftTree | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.observe, self.release = self.inner.observe, self.inner.release
        self.observe_features = getattr(self.inner, "observe_features", None)

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        raise AssertionError("propose_while takes its place")

    def propose_while(
        self, requests: Sequence[Request], num_nodes: int, shape: str, worth: Worth
    ) -> list[DraftTree | None]:
        assert isinstance(self.inner, DraftsByLevel)
        trees = self.inner.propose_while(requests, num_nodes, shape, worth)
        for request, tree in zip(requests, trees, strict=True):
            self.trees[request.seq, len(request.tokens)] = tree
        return trees


@dataclass(frozen=True)
class Stopping(Fixed):
    """Asks below those nodes that `rule` names, given the request and its frontier."""

    rule: Callable[[Drafting, Frontier], Sequence[bool]] = lambda request, frontier: ()

    def worth(
        self, requests: Sequence[Drafting], frontiers: Sequence[Frontier]
    ) -> list[list[bool]]:
        assert len({frontier.level for frontier in frontiers}) == 1
        return [list(self.rule(r, f)) for r, f in zip(requests, frontiers, strict=True)]


def decode(
    decoder: Decoder,
    drafter: Drafter,
    schedule: Schedule,
    num_tokens: int = 24,
    sampling: Sampling = Sampling(),  # noqa: B008
) -> list[list[int]]:
    """The output of all prompts together."""
    assert decoder._cache is not None
    engine = Engine(decoder.model, decoder._cache, drafter, sampling, schedule)
    requests = [
        Request(seq=seq, tokens=[*prompt], limit=len(prompt) + num_tokens, seed=seq)
        for seq, prompt in enumerate(PROMPTS)
    ]
    for request in requests:
        engine.add(request)
    while engine.busy:
        engine.step()
    return [request.output for request in requests]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass of a drafter's model; those of a prompt are not counted."""
    rows: list[int] = []
    for module in (layer_skip, draft_model):
        original = module.node_log_probs

        def spy(model, cache, trees, seqs, *, num_layers=None, original=original):  # type: ignore[no-untyped-def]
            rows.append(sum(map(len, trees)))
            return original(model, cache, trees, seqs, num_layers=num_layers)

        monkeypatch.setattr(module, "node_log_probs", spy)
    log_probs = EagleHead.log_probs

    def head_spy(self: EagleHead, features: torch.Tensor) -> torch.Tensor:
        rows.append(len(features))
        return log_probs(self, features)

    monkeypatch.setattr(EagleHead, "log_probs", head_spy)
    return rows


def policy(draft_ms: dict[tuple[int, int], float]) -> Policy:
    """Whatever is drafted is verified, for nothing."""
    return Policy(
        verdicts={1: Verdict("tree", NUM_NODES, draft_ms=0.0, accepted=2.0, speedup=2.0)},
        costs=CostTables(
            verify=((256, 256, 10.0),),
            draft=tuple((*size, ms) for size, ms in draft_ms.items()),
        ),
        drafter="x",
    )


@every_drafter
@pytest.mark.parametrize("paying", [0, 1, 2, 3])
def test_the_level_that_cannot_pay_is_not_drafted(
    make: Make, paying: int, tmp_path: Path, passes: list[int]
) -> None:
    """Levels up to `paying` are free, the next costs more than the tokens of all that may come."""
    decoder, inner = make(tmp_path)
    drafter = Watched(inner)
    free = {(paying, 256): 1e-9} if paying > 0 else {}
    schedule = Online(policy(free | {(99, 256): 1e6}), max_rows=256)
    expected = [plain(decoder, prompt, 24) for prompt in PROMPTS]
    passes.clear()
    assert decode(decoder, drafter, schedule) == expected
    rooms = [
        max(len(PROMPTS[seq]) + 24 - length for seq, length in call) for call in calls(drafter)
    ]
    assert len(rooms) > 5
    assert len(passes) == sum(min(paying, room - 1) for room in rooms)
    assert max(int(tree.depths.max()) for tree in drafter.trees.values() if tree) == paying


def drafted(drafter: Watched) -> dict[tuple[int, int], DraftTree]:
    return {key: tree for key, tree in drafter.trees.items() if tree is not None and len(tree) > 1}


def calls(drafter: Watched) -> list[list[tuple[int, int]]]:
    """The requests of each call: their keys came one after the other, by ascending sequence."""
    groups: list[list[tuple[int, int]]] = []
    for key in drafter.trees:
        if not groups or key[0] <= groups[-1][-1][0]:
            groups.append([])
        groups[-1].append(key)
    return groups


@every_drafter
def test_free_drafting_drafts_what_an_unbounded_draft_does(
    make: Make, tmp_path: Path, passes: list[int]
) -> None:
    found = []
    for schedule in (Fixed(NUM_NODES), Online(policy({(99, 256): 1e-9}), max_rows=256)):
        decoder, inner = make(tmp_path)
        drafter = Watched(inner)
        passes.clear()
        outputs = decode(decoder, drafter, schedule)
        found.append((outputs, drafted(drafter), [*passes]))
    assert found[0] == found[1]
    assert max(map(len, found[0][1].values())) == NUM_NODES


@every_drafter
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_nothing_lies_below_a_stopped_branch(
    make: Make, kept: int, tmp_path: Path, passes: list[int]
) -> None:
    """Below the root one branch goes on, the one of rank `kept`; then all of it does."""
    stopped: dict[tuple[int, int], set[tuple[int, ...]]] = {}

    def rule(request: Drafting, frontier: Frontier) -> list[bool]:
        paths = [tuple(frontier.tree.tokens[frontier.tree.path(n)]) for n in frontier.nodes]
        if frontier.level != 2:
            return [True] * len(paths)
        key = (request.seq, request.context + 1)
        stopped[key] = {path for rank, path in enumerate(paths) if rank != kept}
        return [rank == kept for rank in range(len(paths))]

    decoder, inner = make(tmp_path)
    drafter = Watched(inner)
    expected = [plain(decoder, prompt, 24) for prompt in PROMPTS]
    passes.clear()
    assert decode(decoder, drafter, Stopping(NUM_NODES, rule=rule)) == expected
    num_leaves = deepest = 0
    for key, tree in drafter.trees.items():
        for node in range(1, 0 if tree is None else len(tree)):
            path = tuple(tree.tokens[tree.path(node)])
            num_leaves += path in stopped.get(key, ())
            deepest = max(deepest, len(path) - 1)
            above = {path[:length] for length in range(len(path))}
            assert not above & stopped.get(key, set())
    assert num_leaves > 10  # they stay in the tree themselves
    assert deepest > 2


def test_rows_are_the_frontier_and_what_lies_above(passes: list[int], tmp_path: Path) -> None:
    """Of a tree that goes on below one node per level: that chain; else what has grown further."""
    decoder, drafter = skipping(tmp_path)
    request = Request(seq=0, tokens=[*PROMPTS[0]], limit=100)
    assert decoder._cache is not None
    decoder._cache.pool.create(0, request.tokens[:-1])
    prefill(decoder.model, decoder._cache, 0, request.tokens[:-1], 0)

    def last(requests: Sequence[Request], frontiers: Sequence[Frontier]) -> list[list[bool]]:
        (nodes,) = (frontier.nodes for frontier in frontiers)
        return [[node == nodes[-1] for node in nodes]]

    with torch.inference_mode():
        drafter.propose_while([request], 17, "tree", last)
        assert passes == [1, 2, 3, 4]
        passes.clear()
        (tree,) = drafter.propose([request], 17, "tree")
    assert tree is not None
    needed = [Frontier(tree, np.flatnonzero(tree.depths == d)).paths() for d in range(4)]
    assert passes == [len(paths) for paths in needed]


@every_drafter
def test_drafts_go_on_where_earlier_ones_stopped(make: Make, tmp_path: Path) -> None:
    """Two of three drafts stop at once; the next misses nothing of a draft at every position."""

    class NotVerified(Fixed):
        def cut(self, requests: Sequence[Drafting], trees: Sequence[DraftTree]) -> list[DraftTree]:
            return [DraftTree.chain(tree.tokens[:1]) for tree in trees]

    def rule(request: Drafting, frontier: Frontier) -> list[bool]:
        stops = (request.context + request.seq) % 3 > 0
        return [not stops] * len(frontier.nodes)

    found = []
    for schedule in (Stopping(NUM_NODES, rule=rule), NotVerified(NUM_NODES)):
        decoder, inner = make(tmp_path)
        drafter = Watched(inner)
        outputs = decode(decoder, drafter, schedule, num_tokens=60)
        assert outputs == [plain(decoder, prompt, 60) for prompt in PROMPTS]
        found.append(drafted(drafter))
    assert len(found[0]) > 20
    for key, stopping in found[0].items():
        free = found[1][key]
        assert stopping.tokens.tolist() == free.tokens.tolist()
        assert stopping.parents.tolist() == free.parents.tolist()
        assert stopping.scores == pytest.approx(free.scores, abs=1e-4)


class NotConsulted(Online):
    def worth(
        self, requests: Sequence[Drafting], frontiers: Sequence[Frontier]
    ) -> list[list[bool]]:
        raise AssertionError("this draft must not be stopped")


@every_drafter
@pytest.mark.parametrize("rule", ["multistep", "swor", "block", "traversal"])
def test_drawn_trees_are_not_stopped(
    make: Make, rule: str, tmp_path: Path, passes: list[int]
) -> None:
    """Whatever drafting costs: the output is that of a draft which costs nothing."""
    shape = "chain" if rule == "block" else "tree"
    found = []
    for costs in ({(99, 256): 1e6}, {(99, 256): 1e-9}):
        decoder, drafter = make(tmp_path)
        drawn = policy(costs)
        drawn.verdicts[1] = Verdict(shape, NUM_NODES, 0.0, 2.0, 2.0)  # type: ignore[index]
        passes.clear()
        outputs = decode(decoder, drafter, NotConsulted(drawn), sampling=Sampling(rule, 0.9))
        found.append((outputs, [*passes]))
    assert found[0] == found[1]
    assert len(found[0][1]) > 10


def test_a_drafter_with_propose_only_is_never_stopped() -> None:
    decoder = tiny_decoder(num_blocks=256)
    truth = {len(prompt): plain(decoder, prompt, 30) for prompt in PROMPTS}
    rng = np.random.default_rng(0)

    def script(request: Request) -> DraftTree:
        following = truth[request.num_prompt][len(request.output) :]
        return random_tree(rng, request.tokens[-1], following, 8, 64)

    drafter = Scripted(script)
    assert not isinstance(drafter, DraftsByLevel)
    outputs = decode(decoder, drafter, NotConsulted(policy({(99, 256): 1e6})))
    assert outputs == [tokens[:24] for tokens in truth.values()]
