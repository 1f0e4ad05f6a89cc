# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-style drafter: which trees it drafts, which KV it keeps, and what is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.eagle import (
    dense_log_probs,
    related_decoder,
    related_weights,
    save_head,
    target_features,
)
from support.tiny import logical_kv, plain
from torch import Tensor
from treeattn.cli.recorder import Recorder
from treeattn.decoder import Decoder, EagleDraft, ReadsFeatures, Request, SuffixDraft
from treeattn.decoder import engine as engine_module
from treeattn.decoder import forward as forward_module
from treeattn.decoder.drafters import eagle as eagle_module
from treeattn.decoder.drafters.levels import Worth
from treeattn.decoder.eagle_head import EagleHead
from treeattn.schedule import eagle2
from treeattn.tree import DraftTree

PROMPTS = [[4, 8, 15, 16, 23], list(range(50)), [7], [9, 9, 2] * 4]
LIMITS = {"top_k": 3, "depth": 4}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_head(tmp_path / "head")


class Watched(EagleDraft):
    """Calls `look` after each proposal, while what was committed is still as the draft left it."""

    def __init__(self, drafter: EagleDraft) -> None:
        self.__dict__ |= drafter.__dict__

    def propose_while(
        self, requests: Sequence[Request], num_nodes: int, shape: str, worth: Worth
    ) -> list[DraftTree | None]:
        trees = super().propose_while(requests, num_nodes, shape, worth)
        for request, tree in zip(requests, trees, strict=True):
            self.look(request, tree)
        return trees

    def look(self, request: Request, tree: DraftTree | None) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.parametrize("limits", [LIMITS, {"top_k": 40, "depth": 2}], ids=["deep", "wide"])
def test_every_tree_is_eagle2_of_the_dense_head(
    shape: str, limits: dict[str, int], folder: Path
) -> None:
    """Over the target's features of a fresh pass, whatever was accepted and rejected before."""
    decoder, (_, weights) = related_decoder(), related_weights()
    ids = weights["d2t"] + torch.arange(len(weights["d2t"]))
    looked: list[int] = []

    class Checked(Watched):
        def look(self, request: Request, tree: DraftTree | None) -> None:
            committed = request.tokens[:-1]
            if len(committed) == 0 or request.room < 2:
                assert tree is None
                return
            features = target_features(decoder, committed)

            def log_probs(partial: DraftTree, nodes: Sequence[int]) -> Tensor:
                laws = torch.full((len(nodes), 64), -torch.inf)
                for row, node in enumerate(nodes):
                    path = partial.tokens[partial.path(node)].tolist()
                    dense = dense_log_probs(
                        weights, decoder.model.embedding, committed + path, features
                    )
                    laws[row, ids] = dense[-1]
                return laws

            top_k = 1 if shape == "chain" else limits["top_k"]
            depth = min(limits["depth"], request.room - 1)
            expected = eagle2(log_probs, request.tokens[-1], top_k=top_k, depth=depth, num_nodes=12)
            assert tree is not None and tree.scores is not None and expected.scores is not None
            assert tree.tokens.tolist() == expected.tokens.tolist()
            assert tree.parents.tolist() == expected.parents.tolist()
            assert tree.scores.tolist() == pytest.approx(expected.scores.tolist(), abs=1e-4)
            looked.append(len(tree))

    drafter = Checked(decoder.load_draft_head(folder, **limits))
    outs = decoder.generate(PROMPTS, max_new_tokens=9, drafter=drafter, num_nodes=12, shape=shape)
    assert [out.tokens for out in outs] == [plain(decoder, prompt, 9) for prompt in PROMPTS]
    assert len(looked) > 12
    assert max(looked) == (12 if shape == "tree" else limits["depth"] + 1)


def test_no_rejected_or_approximate_entry_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed KV and the law at the new root are those of a fresh prefill."""
    decoder = related_decoder()
    laws: list[Tensor] = []
    original = EagleHead.log_probs

    def spy(self: EagleHead, features: Tensor) -> Tensor:
        laws.append(original(self, features))
        return laws[-1]

    monkeypatch.setattr(EagleHead, "log_probs", spy)
    lengths = []

    class Checked(Watched):
        def look(self, request: Request, tree: DraftTree | None) -> None:
            if tree is None:
                return
            root_law = laws[0]
            laws.clear()
            fresh = decoder.load_draft_head(folder, **LIMITS)
            copy = Request(seq=0, tokens=list(request.tokens), limit=request.limit)
            fresh.observe_features(copy, target_features(decoder, copy.tokens[:-1]))
            fresh.propose([copy], 12, "tree")
            torch.testing.assert_close(root_law, laws[0], rtol=0, atol=1e-4)
            laws.clear()
            num_rows = self._cache.pool.context_len(request.seq)
            assert num_rows == fresh._cache.pool.context_len(0) == len(copy.tokens) - 2
            kept, expected = (
                logical_kv(drafter._cache, seq, num_rows)
                for drafter, seq in ((self, request.seq), (fresh, 0))
            )
            torch.testing.assert_close(kept, expected, rtol=0, atol=1e-4)
            lengths.append(num_rows)

    drafter = Checked(decoder.load_draft_head(folder, **LIMITS))
    accepted = set()
    for prompt in PROMPTS:
        decoder.generate([prompt], max_new_tokens=30, drafter=drafter, num_nodes=12)
        accepted |= set(decoder.stats.accepted)
    assert accepted == {0, 1, 2, 3, 4}
    assert len(lengths) > 20


@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.parametrize("num_nodes", [1, 2, 6, 12])
def test_output_is_that_of_plain_decoding(shape: str, num_nodes: int, folder: Path) -> None:
    decoder = related_decoder(num_blocks=256)
    expected = [plain(decoder, prompt, 30) for prompt in PROMPTS]
    drafter = decoder.load_draft_head(folder, **LIMITS)
    options = {"max_new_tokens": 30, "drafter": drafter, "num_nodes": num_nodes, "shape": shape}
    outs = decoder.generate(PROMPTS, **options)  # type: ignore[arg-type]
    assert [out.tokens for out in outs] == expected
    assert all((out.stats.drafted > 0) == (num_nodes > 1) for out in outs)
    assert len(set(decoder.stats.accepted)) == min(num_nodes, LIMITS["depth"] + 1)
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        assert list(decoder.stream(prompt, **options)) == tokens  # type: ignore[arg-type]
    assert_all_free(drafter)


def assert_all_free(drafter: EagleDraft) -> None:
    assert drafter._cache.pool.num_free == drafter._cache.num_blocks
    assert not drafter._pending and not drafter._without_room
    drafter._cache.pool.check()


@pytest.mark.parametrize(("chunk", "pending"), [(1, 32), (3, 1), (7, 5), (64, 2), (64, 200)])
def test_prompts_in_chunks(
    chunk: int, pending: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the features come and however many wait, the drafts are the same."""
    decoder = related_decoder()

    def generate() -> list[tuple[list[int], list[int]]]:
        drafter = decoder.load_draft_head(folder, **LIMITS)
        outs = decoder.generate(PROMPTS, max_new_tokens=20, drafter=drafter, num_nodes=12)
        return [(out.tokens, out.stats.accepted) for out in outs]

    expected = generate()
    monkeypatch.setattr(forward_module, "PREFILL_CHUNK", chunk)
    monkeypatch.setattr(engine_module, "PREFILL_BUDGET", 2 * chunk)
    monkeypatch.setattr(eagle_module, "MAX_PENDING", pending)
    assert generate() == expected


def test_requests_that_are_set_back_draft_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set back while running and while their prompt is read."""
    set_back: list[str] = []
    original = engine_module.Engine._set_back_youngest

    def spy(self: engine_module.Engine) -> None:
        set_back.append("running" if self.prefilling is None else "prefilling")
        original(self)

    monkeypatch.setattr(engine_module.Engine, "_set_back_youngest", spy)
    monkeypatch.setattr(forward_module, "PREFILL_CHUNK", 2)
    monkeypatch.setattr(engine_module, "PREFILL_BUDGET", 4)
    prompts = [[*PROMPTS[0]], [*PROMPTS[3]], list(range(30)), [1, 2], [60] * 21]
    expected = [plain(related_decoder(), prompt, 40) for prompt in prompts]
    decoder = related_decoder(num_blocks=26)
    drafter = decoder.load_draft_head(folder, **LIMITS)
    outs = decoder.generate(prompts, max_new_tokens=40, drafter=drafter, num_nodes=12)
    assert [out.tokens for out in outs] == expected
    assert set(set_back) == {"running", "prefilling"}
    assert all(sum(out.stats.accepted) > 0 for out in outs)
    assert_all_free(drafter)


def test_without_room_nothing_is_drafted(folder: Path) -> None:
    """Too few blocks for one prompt, and for the other's trees after a while."""
    decoder = related_decoder()
    prompts = [[7, 8], list(range(48))]
    drafter = decoder.load_draft_head(folder, top_k=2, depth=3, num_blocks=5)
    outs = decoder.generate(prompts, max_new_tokens=30, drafter=drafter, num_nodes=6)
    assert [out.tokens for out in outs] == [plain(decoder, prompt, 30) for prompt in prompts]
    assert 0 < outs[0].stats.drafted < 5 * (outs[0].stats.steps - 1)
    assert outs[1].stats.drafted == 0
    assert_all_free(drafter)


def test_what_is_abandoned_gives_its_blocks_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_module, "PREFILL_CHUNK", 4)
    monkeypatch.setattr(engine_module, "PREFILL_BUDGET", 8)
    decoder = related_decoder(num_blocks=128)
    drafter = decoder.load_draft_head(folder, **LIMITS)
    stream = decoder.stream(PROMPTS[0], max_new_tokens=20, drafter=drafter)
    next(stream)
    assert drafter._cache.pool.num_free < drafter._cache.num_blocks
    stream.close()  # type: ignore[attr-defined]
    assert_all_free(drafter)
    decoder.model.embedding[5] = torch.nan  # ends the first request while the second is read
    with pytest.raises(RuntimeError, match="non-finite logits"):
        decoder.generate([[5], PROMPTS[1]], max_new_tokens=20, drafter=drafter)
    assert_all_free(drafter)


def test_sampled_tokens_do_not_depend_on_the_drafts(folder: Path) -> None:
    decoder = related_decoder()
    options = {"max_new_tokens": 25, "rule": "target", "temperature": 0.9, "seeds": 11}
    drafter = decoder.load_draft_head(folder, **LIMITS)
    outs = decoder.generate(PROMPTS, drafter=drafter, num_nodes=12, **options)  # type: ignore[arg-type]
    assert sum(decoder.stats.accepted) > 10
    expected = decoder.generate(PROMPTS, drafter="none", **options)  # type: ignore[arg-type]
    assert [out.tokens for out in outs] == [out.tokens for out in expected]


def test_a_proposal_may_be_repeated(folder: Path) -> None:
    decoder = related_decoder()
    drafter = decoder.load_draft_head(folder, **LIMITS)
    request = Request(seq=3, tokens=[*PROMPTS[0]], limit=100)
    drafter.observe_features(request, target_features(decoder, request.tokens[:-1]))
    first = drafter.propose([request], 16, "tree")
    assert drafter.propose([request], 16, "tree") == first
    assert first[0] is not None and len(first[0]) == 16
    assert drafter.propose([request], 1, "tree") == [None]


def test_a_recorder_hands_the_features_on(folder: Path) -> None:
    decoder = related_decoder()
    recorder = Recorder(decoder.load_draft_head(folder, **LIMITS))
    for drafter in (recorder, recorder._inner):
        decoder.generate(PROMPTS[:1], max_new_tokens=20, drafter=drafter, num_nodes=12)
        assert sum(decoder.stats.accepted) > 5
    assert len(recorder.trees) > 5
    assert isinstance(recorder, ReadsFeatures)
    assert not isinstance(Recorder(SuffixDraft()), ReadsFeatures)


@pytest.mark.parametrize("draws", ["iid", "swor"])
def test_drawn_laws_are_those_of_the_dense_head(draws: str, folder: Path) -> None:
    """Two requests abreast, one behind by more tokens than the other."""
    decoder, (_, weights) = related_decoder(), related_weights()
    drafter = decoder.load_draft_head(folder)
    requests = [Request(seq=i, tokens=[*PROMPTS[2 * i + 1]] * 2, limit=200) for i in range(2)]
    features = [target_features(decoder, request.tokens[:-1]) for request in requests]
    for request, known in zip(requests, features, strict=True):
        drafter.observe_features(request, known)
    trees, laws = drafter.draw(requests, 11, "tree", draws=draws, temperature=0.7)
    assert laws.ids is not None
    torch.testing.assert_close(laws.ids, weights["d2t"] + torch.arange(len(weights["d2t"])))
    for request, known, tree, law in zip(requests, features, trees, laws.probs, strict=True):
        assert tree is not None and law is not None and tree.draft_rows is not None
        assert len(tree) == 11 and tree.draws == draws and max(tree.depths) > 2
        for node in range(1, 11):
            path = tree.tokens[tree.path(int(tree.parents[node]))].tolist()
            dense = dense_log_probs(
                weights, decoder.model.embedding, request.tokens[:-1] + path, known
            )
            expected = (dense[-1] / 0.7).softmax(-1)
            own = law[tree.draft_rows[node]]
            torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-5)


def test_missing_features_are_an_error(folder: Path) -> None:
    decoder: Decoder = related_decoder()
    drafter = decoder.load_draft_head(folder, **LIMITS)
    request = Request(seq=3, tokens=[*PROMPTS[0]], limit=100)
    drafter.observe_features(request, target_features(decoder, request.tokens[:2]))
    with pytest.raises(ValueError, match="every token of a request but the last, 4; 2 came"):
        drafter.propose([request], 16, "tree")
