# SPDX-License-Identifier: Apache-2.0
"""Drafts that are drawn, and the rules that correct for the law they were drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from support.eagle import related_decoder, related_weights, save_head
from support.tiny import chain_logits, char_tokenizer, tiny_decoder
from support.two_tokens import p_value
from treeattn.decoder import Decoder
from treeattn.decoder.drafters import Drafter, LayerSkip
from treeattn.decoder.drafters.drawn import (
    ACCEPTANCE,
    NO_TOKEN,
    DraftLaws,
    DrawnTree,
    drawn_shape,
    without_missing,
)
from treeattn.decoder.forward import prefill
from treeattn.decoder.request import Request
from treeattn.tree import DraftTree

PROMPT = [4, 8, 15, 16, 23]
RULES = ("multistep", "swor", "block", "traversal")
NEEDS_CHAIN = {"block"}


def layer_skip(decoder: Decoder, num_layers: int = 1) -> LayerSkip:
    cache = decoder._cache
    assert cache is not None
    return LayerSkip(decoder.model, cache, num_layers)


def shape_of(rule: str) -> str:
    return "chain" if rule in NEEDS_CHAIN else "tree"


# The shape.


def test_shapes() -> None:
    assert drawn_shape(1, "tree", 6) == (0,)
    assert drawn_shape(4, "chain", 6) == (1, 1, 1, 0)
    assert drawn_shape(9, "chain", 2) == (1, 1, 0)
    assert drawn_shape(5, "tree", 0) == (0,)
    assert drawn_shape(3, "tree", 6) == (1, 1, 0)
    # 1, 0.6, 0.36, 0.216, then 0.2 (the root's second child) before 0.6 ** 4
    assert drawn_shape(5, "tree", 6) == (2, 1, 0, 1, 0)


@pytest.mark.parametrize("num_nodes", [2, 7, 16, 40])
@pytest.mark.parametrize("levels", [1, 3])
def test_the_shape_has_the_likeliest_paths(num_nodes: int, levels: int) -> None:
    counts = drawn_shape(num_nodes, "tree", levels)
    chances, parents = [1.0], [-1]
    for node, count in enumerate(counts):
        for rank in range(count):
            chances.append(chances[node] * ACCEPTANCE[rank])
            parents.append(node)
    every = sorted(
        (
            torch.tensor([ACCEPTANCE[rank] for rank in path]).prod().item()
            for depth in range(levels + 1)
            for path in product(range(len(ACCEPTANCE)), repeat=depth)
        ),
        reverse=True,
    )
    assert len(chances) == len(counts) == min(num_nodes, len(every))
    assert sorted(chances, reverse=True) == pytest.approx(every[: len(counts)])


# The draws.


def drawn_siblings(draws: str, law: torch.Tensor, count: int, seed: int) -> list[int]:
    tree = DrawnTree(
        9,
        (count, *([0] * count)),
        draws=draws,
        temperature=1.0,
        generator=torch.Generator().manual_seed(seed),
    )
    tree.expand(law.log()[None])
    assert tree.frontier == [] and tree.best().draws == draws
    return tree.best().tokens[1:].tolist()


def test_draws_have_the_law_they_claim() -> None:
    """Ordered pairs: independent, or the second from what the first left (chi-square)."""
    law = torch.tensor([0.5, 0.25, 0.2, 0.05], dtype=torch.float64)
    num_draws = 4000
    for draws in ("iid", "swor"):
        seen = Counter(tuple(drawn_siblings(draws, law, 2, seed)) for seed in range(num_draws))
        statistic, cells = 0.0, 0
        for a, b in product(range(4), repeat=2):
            if draws == "swor" and a == b:
                assert (a, b) not in seen
                continue
            left = 1.0 if draws == "iid" else 1.0 - law[a].item()
            expected = num_draws * law[a].item() * law[b].item() / left
            statistic += (seen[(a, b)] - expected) ** 2 / expected
            cells += 1
        assert statistic < {16: 44.3, 12: 37.4}[cells]  # p = 1e-4 at 15 and 11 degrees of freedom


def test_tokens_without_probability_are_never_drawn() -> None:
    law = torch.tensor([0.0, 0.7, 0.0, 0.3])
    for seed in range(50):
        assert sorted(drawn_siblings("swor", law, 3, seed)[:2]) == [1, 3]
        assert drawn_siblings("swor", law, 4, seed)[2:] == [NO_TOKEN, NO_TOKEN]
        assert set(drawn_siblings("iid", law, 3, seed)) <= {1, 3}


def test_the_shape_does_not_depend_on_the_draws() -> None:
    """Two children of the root, two of each, one below: of a law of one token most is missing."""
    shape = (2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0)
    tree = DrawnTree(9, shape, draws="swor", temperature=1.0, generator=torch.Generator())
    tree.expand(torch.tensor([[0.5, 0.5, 0.0]]).log())
    tree.expand(torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]]).log())
    assert len(tree.frontier) == 3
    tree.expand(torch.tensor([[0.0, 0.0, 1.0]] * 3).log())
    assert tree.frontier == []
    best, law = tree.best(), tree.laws()
    assert best.parents.tolist() == [-1, 0, 1, 2, 1, 4, 0, 6, 7, 6, 9]
    assert (best.tokens == NO_TOKEN).tolist() == [False] * 4 + [True] * 2 + [False] * 5
    assert best.tokens[[2, 3, 8, 10]].tolist() == [1, 2, 2, 2]
    assert law is not None and law.shape == (6, 3)  # of the nodes that drew
    kept = without_missing(best)
    assert kept.parents.tolist() == [-1, 0, 1, 2, 0, 4, 5, 4, 7]
    assert kept.draft_rows is not None and kept.draws == "swor"
    assert law[kept.draft_rows[2]].tolist() == [0.0, 1.0, 0.0]
    assert (law[kept.draft_rows[1:].tolist(), kept.tokens[1:].tolist()] > 0).all()
    assert without_missing(kept) is kept


@pytest.mark.parametrize("draws", ["iid", "swor"])
def test_laws_are_those_of_the_children(draws: str) -> None:
    """With all layers the draft's laws are the target's, at the temperature asked for."""
    decoder = tiny_decoder(num_blocks=128)
    request = Request(seq=0, tokens=[*PROMPT], limit=40, seed=3)
    cache = decoder._cache
    assert cache is not None
    cache.pool.create(0, PROMPT[:-1])
    prefill(decoder.model, cache, 0, PROMPT[:-1], 0)
    drafter = layer_skip(decoder, decoder.config.num_layers)
    (tree,), laws = drafter.draw([request], 9, "tree", draws=draws, temperature=0.5)
    (law,) = laws.probs
    assert isinstance(tree, DraftTree) and law is not None and tree.draft_rows is not None
    with_children = len(set(tree.parents[1:].tolist()))  # leaves have no law: no row is kept
    assert len(tree) == 9 and law.shape == (with_children, decoder.config.vocab_size)
    for node in range(1, 9):
        path = tree.tokens[tree.path(int(tree.parents[node]))].tolist()
        expected = (chain_logits(decoder, PROMPT[:-1] + path)[-1] / 0.5).softmax(-1)
        own = law[tree.draft_rows[node]]
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


# Decoding.


def with_layer_skip(folder: Path) -> tuple[Decoder, Drafter, float]:
    decoder = tiny_decoder(num_blocks=2048)
    return decoder, layer_skip(decoder), 0.5


def with_draft_model(folder: Path) -> tuple[Decoder, Drafter, float]:
    decoder = tiny_decoder(num_blocks=2048, tokenizer=char_tokenizer())
    draft = tiny_decoder(seed=1, tokenizer=char_tokenizer())
    return decoder, draft.as_drafter_for(decoder, num_blocks=2048), 0.5


def with_draft_head(folder: Path) -> tuple[Decoder, Drafter, float]:
    decoder = related_decoder(num_blocks=2048)
    head = save_head(folder / "head", related_weights()[1])
    return decoder, decoder.load_draft_head(head, num_blocks=2048), 2.0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", [with_layer_skip, with_draft_model, with_draft_head])
def test_the_tokens_have_the_target_s_law(
    rule: str, make: Callable[[Path], tuple[Decoder, Drafter, float]], tmp_path: Path
) -> None:
    """Chi-square of the first two tokens over many seeds against plain probabilities."""
    decoder, drafter, temperature = make(tmp_path)
    num_requests = 600
    seen: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for batch in range(4):
        outs = decoder.generate(
            [PROMPT] * num_requests,
            max_new_tokens=2,
            drafter=drafter,
            num_nodes=5,
            shape=shape_of(rule),
            rule=rule,
            temperature=temperature,
            seeds=list(range(batch * num_requests, (batch + 1) * num_requests)),
            ignore_eos=True,
        )
        seen.update(tuple(out.tokens) for out in outs)
        accepted += sum(sum(out.stats.accepted) for out in outs)
    assert accepted > 0
    assert p_value(decoder, PROMPT, temperature, seen) > 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_a_perfect_draft_chain_is_always_accepted(rule: str) -> None:
    decoder = tiny_decoder(num_blocks=128)
    (out,) = decoder.generate(
        [PROMPT],
        max_new_tokens=21,
        drafter=layer_skip(decoder, decoder.config.num_layers),
        num_nodes=5,
        shape="chain",
        rule=rule,
        temperature=0.9,
        seeds=5,
        ignore_eos=True,
    )
    assert out.stats.accepted[:-1] == [4] * (out.stats.steps - 1)


@pytest.mark.parametrize("rule", RULES)
def test_temperature_0_is_greedy(rule: str) -> None:
    decoder = tiny_decoder(num_blocks=128)
    (plain,) = decoder.generate([PROMPT], max_new_tokens=12, drafter="none")
    (out,) = decoder.generate(
        [PROMPT], max_new_tokens=12, drafter="layer_skip", rule=rule, shape=shape_of(rule)
    )
    assert out.tokens == plain.tokens


@pytest.mark.parametrize("rule", RULES)
def test_seeded_output_repeats(rule: str) -> None:
    decoder = tiny_decoder(num_blocks=128)
    options = {
        "max_new_tokens": 12,
        "drafter": "layer_skip",
        "rule": rule,
        "shape": shape_of(rule),
        "temperature": 0.8,
        "top_p": 0.9,
        "seeds": [1, 2],
    }
    runs = [decoder.generate([PROMPT, [7]], **options) for _ in range(2)]  # type: ignore[arg-type]
    assert [out.tokens for out in runs[0]] == [out.tokens for out in runs[1]]


# Errors.


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", ["suffix", "lookup"])
def test_a_drafter_without_a_law_is_refused(rule: str, drafter: str) -> None:
    message = f"rule {rule} needs a drafter that draws its tokens.*got '{drafter}'"
    with pytest.raises(ValueError, match=message):
        tiny_decoder().generate(
            [PROMPT],
            max_new_tokens=2,
            drafter=drafter,
            rule=rule,
            shape=shape_of(rule),
            temperature=1.0,
        )


def test_block_wants_chains() -> None:
    with pytest.raises(ValueError, match="shape must be chain, got 'tree'"):
        tiny_decoder().generate(
            [PROMPT], max_new_tokens=2, drafter="layer_skip", rule="block", temperature=1.0
        )


class Changed(LayerSkip):
    """A drafter that says something else of what it drew."""

    def __init__(self, drafter: LayerSkip, draws: str | None) -> None:
        self.__dict__ |= drafter.__dict__
        self._says = draws

    def draw(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        trees, laws = super().draw(*args, **kwargs)
        if self._says is None:
            return trees, DraftLaws([None] * len(trees))
        return [DraftTree(t.tokens, t.parents, draws=self._says) for t in trees], laws


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("deterministic", "needs drafts with draws='swor', but the draft of request 0 has 'det"),
        (None, "rule swor needs the law of the draft of request 0"),
    ],
)
def test_what_a_drafter_says_is_checked(says: str | None, message: str) -> None:
    decoder = tiny_decoder(num_blocks=128)
    with pytest.raises(ValueError, match=message):
        decoder.generate(
            [PROMPT],
            max_new_tokens=4,
            drafter=Changed(layer_skip(decoder), says),
            rule="swor",
            temperature=1.0,
        )


@pytest.mark.parametrize("temperature", [1e-39, 1e39])
@pytest.mark.parametrize("draws", ["iid", "swor"])
def test_extreme_temperatures(temperature: float, draws: str) -> None:
    tree = DrawnTree(
        9, (2, 0, 0), draws=draws, temperature=temperature, generator=torch.Generator()
    )
    tree.expand(torch.tensor([[-3.0, -1.0, -float("inf"), -2.0]]))
    law = tree.laws()
    assert law is not None
    expected = [0.0, 1.0, 0.0, 0.0] if temperature < 1 else [1 / 3, 1 / 3, 0.0, 1 / 3]
    torch.testing.assert_close(law[0], torch.tensor(expected))
    assert all(law[0][token] > 0 for token in without_missing(tree.best()).tokens[1:])


def test_rare_tokens_are_drawn() -> None:
    """Behind likely ones, where sums of floats no longer see them."""
    num_rare, mass = 40_000, 2.0**-26
    law = torch.full((num_rare + 1,), mass)
    law[0] = 1.0 - num_rare * mass
    tree = DrawnTree(
        9,
        (200_000, *([0] * 200_000)),
        draws="iid",
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
    )
    tree.expand(law.log()[None])
    found = sum(token > 0 for token in tree.best().tokens[1:].tolist())
    assert found == pytest.approx(200_000 * num_rare * mass, rel=0.5)  # about 119
