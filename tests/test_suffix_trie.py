# SPDX-License-Identifier: Apache-2.0
"""SuffixTrie against a naive reference that recounts every window for every proposal."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from treeattn._host import SuffixTrie
from treeattn.tree import DraftTree

Draft = tuple[list[int], list[int], list[float]]


def continuations(streams: list[list[int]], context: tuple[int, ...]) -> Counter[int]:
    counts: Counter[int] = Counter()
    n = len(context)
    for tokens in streams:
        for i in range(len(tokens) - n):
            if tuple(tokens[i : i + n]) == context:
                counts[tokens[i + n]] += 1
    return counts


def naive_propose(
    streams: list[list[int]],
    own: list[int],
    max_depth: int,
    num_nodes: int,
    min_match: int = 1,
    min_prob: float = 0.0,
) -> Draft:
    """Each node's context is looked up afresh: the longest suffix of stream + path continued."""

    def law(context: tuple[int, ...]) -> Counter[int]:
        for n in range(min(len(context), max_depth - 1), min_match - 1, -1):
            found = continuations(streams, context[len(context) - n :])
            if found:
                return found
        return Counter()

    chosen = [(own[-1], -1, 0.0)]
    contexts = [tuple(own)]
    pool: list[tuple[float, int, int]] = []  # (-log_prob, token, parent)
    while True:
        parent = len(chosen) - 1
        found = law(contexts[parent])
        total = sum(found.values())
        for token, count in found.items():
            log_prob = chosen[parent][2] + math.log(count / total)
            if math.exp(log_prob) >= min_prob:
                pool.append((-log_prob, token, parent))
        if len(chosen) == num_nodes or not pool:
            break
        best = min(pool)
        pool.remove(best)
        chosen.append((best[1], best[2], -best[0]))
        contexts.append((*contexts[best[2]], best[1]))
    order: list[int] = []

    def visit(node: int) -> None:
        order.append(node)
        for child in range(1, len(chosen)):
            if chosen[child][1] == node:
                visit(child)

    visit(0)
    new_id = {node: i for i, node in enumerate(order)} | {-1: -1}
    return (
        [chosen[node][0] for node in order],
        [new_id[chosen[node][1]] for node in order],
        [chosen[node][2] for node in order],
    )


def propose(trie: SuffixTrie, *args: int, **kwargs: float) -> Draft:
    tokens, parents, log_probs = trie.propose(*args, **kwargs)  # type: ignore[arg-type]
    return tokens.tolist(), parents.tolist(), log_probs.tolist()


def repetitive_stream(rng: random.Random, length: int, vocab: int) -> list[int]:
    """Random tokens with many copies of earlier stretches."""
    tokens = [rng.randrange(vocab)]
    while len(tokens) < length:
        if rng.random() < 0.4:
            start = rng.randrange(len(tokens))
            tokens += tokens[start : start + rng.randrange(1, 9)]
        else:
            tokens.append(rng.randrange(vocab))
    return tokens[:length]


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("seed", range(30))
def test_matches_the_naive_reference(seed: int, shared: bool) -> None:
    rng = random.Random(seed)
    max_depth = rng.choice([2, 3, 5, 16])
    vocab = rng.choice([2, 4, 40])
    trie = SuffixTrie(max_depth, shared)
    streams: dict[int, list[int]] = {}
    for _ in range(25):
        stream = rng.randrange(4)
        if stream in streams and rng.random() < 0.2:
            trie.forget(stream)
            del streams[stream]
            continue
        new = repetitive_stream(rng, rng.randrange(1, 30), vocab)
        trie.extend(stream, new)
        streams.setdefault(stream, []).extend(new)
        visible = list(streams.values()) if shared else [streams[stream]]
        options = {
            "min_match": rng.choice([1, 1, 2, 4]),
            "min_prob": rng.choice([0.0, 0.0, 0.07, 0.3]),
        }
        num_nodes = rng.choice([1, 2, 7, 20])
        expected = naive_propose(visible, streams[stream], max_depth, num_nodes, **options)
        assert propose(trie, stream, num_nodes, **options) == expected


def test_proposals_are_valid_trees() -> None:
    rng = random.Random(0)
    trie = SuffixTrie()
    trie.extend(0, repetitive_stream(rng, 2000, 30))
    for _ in range(100):
        trie.extend(0, repetitive_stream(rng, 3, 30))
        tokens, parents, log_probs = trie.propose(0, 32)
        assert (tokens.dtype, parents.dtype, log_probs.dtype) == (np.int64, np.int32, np.float64)
        assert len(tokens) == 32
        tree = DraftTree(tokens, parents, log_probs)
        assert tree.dfs() == tree
        for node in range(32):
            siblings = tree.tokens[tree.children(node)].tolist()
            assert len(set(siblings)) == len(siblings)
        assert (log_probs[1:] <= log_probs[parents[1:]]).all()


def test_copies_a_long_prompt_past_the_depth_of_the_trie() -> None:
    trie = SuffixTrie(max_depth=4)
    trie.extend(0, [*range(100, 160), *range(100, 103)])
    tokens, parents, log_probs = propose(trie, 0, 40)
    assert tokens == list(range(102, 142))
    assert parents == list(range(-1, 39))
    assert log_probs == [0.0] * 40


def test_backs_off_where_the_long_context_ends() -> None:
    trie = SuffixTrie()
    trie.extend(0, [9, 5, 7, 1, 2, 3, 8, 1, 2, 3])
    tokens, _, _ = propose(trie, 0, 4)
    assert tokens == [3, 8, 1, 2]  # 1 2 3 went on with 8
    trie.extend(0, [9])  # 3 9 is new, but 9 went on with 5
    assert propose(trie, 0, 3)[0] == [9, 5, 7]
    assert propose(trie, 0, 3, min_match=2)[0] == [9]


def test_law_ties_and_thresholds() -> None:
    trie = SuffixTrie()
    trie.extend(0, [7, 3, 7, 2, 7, 3, 7, 2, 7, 5, 7])
    tokens, parents, log_probs = propose(trie, 0, 4)
    # After "5 7" nothing is known; after 7 came 3 and 2 twice each, 5 once. Ties: the lower token.
    assert tokens[:2] == [7, 2]
    assert log_probs[1] == math.log(2 / 5)
    assert parents == [-1, 0, 1, 0]
    assert len(propose(trie, 0, 50, min_prob=0.5)[0]) == 1


def test_streams_are_apart_unless_shared() -> None:
    for shared in (False, True):
        trie = SuffixTrie(shared=shared)
        assert trie.shared == shared
        trie.extend(0, [1, 2, 3])
        trie.extend(1, [9, 1])
        assert propose(trie, 1, 3)[0] == ([1, 2, 3] if shared else [1])
        trie.forget(0)
        assert propose(trie, 1, 3)[0] == [1]
        with pytest.raises(KeyError, match="propose: stream 0 is unknown"):
            trie.propose(0, 3)


@pytest.mark.parametrize("seed", range(5))
def test_forget_gives_everything_back(seed: int) -> None:
    rng = random.Random(seed)
    trie = SuffixTrie(max_depth=6, shared=True)
    trie.extend(100, repetitive_stream(rng, 200, 50))
    before = trie.num_windows, propose(trie, 100, 32)
    for stream in range(10):
        trie.extend(stream, repetitive_stream(rng, 300, 50))
    for stream in rng.sample(range(10), k=10):
        trie.forget(stream)
    assert (trie.num_windows, propose(trie, 100, 32)) == before
    trie.forget(100)
    assert trie.num_windows == 0


def test_windows_are_counted_once() -> None:
    trie = SuffixTrie(max_depth=3)
    trie.extend(0, [1, 2, 1, 2, 1])
    assert trie.num_windows == len({(1,), (2,), (1, 2), (2, 1), (1, 2, 1), (2, 1, 2)})


def test_extend_token_by_token_equals_all_at_once() -> None:
    tokens = repetitive_stream(random.Random(1), 300, 6)
    whole, single = SuffixTrie(), SuffixTrie()
    whole.extend(0, tokens)
    for token in tokens:
        single.extend(0, [token])
    single.extend(0, [])
    assert propose(single, 0, 24) == propose(whole, 0, 24)


def test_bad_input() -> None:
    trie = SuffixTrie()
    trie.extend(0, [1, 2])
    trie.extend(1, [])
    for tokens, message in (
        ([3, -1], r"tokens\[1\] must be in \[0, 2\^31\), got -1"),
        ([2**31], r"tokens\[0\] must be in \[0, 2\^31\), got 2147483648"),
    ):
        with pytest.raises(ValueError, match=message):
            trie.extend(0, tokens)
        with pytest.raises(ValueError, match=message):
            trie.extend(5, tokens)
    assert propose(trie, 0, 8)[0] == [2]
    with pytest.raises(KeyError, match="forget: stream 5 is unknown"):
        trie.forget(5)
    with pytest.raises(ValueError, match="stream 1 has no token yet"):
        trie.propose(1, 4)
    with pytest.raises(ValueError, match=r"num_nodes must be in \[1, .* got 0"):
        trie.propose(0, 0)
    with pytest.raises(ValueError, match="min_match must be >= 1, got 0"):
        trie.propose(0, 4, min_match=0)
    for min_prob in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"min_prob must be in \[0, 1\], got"):
            trie.propose(0, 4, min_prob=min_prob)
    for max_depth in (1, 1025):
        with pytest.raises(ValueError, match=rf"max_depth must be in \[2, 1024\], got {max_depth}"):
            SuffixTrie(max_depth)
