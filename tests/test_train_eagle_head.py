# SPDX-License-Identifier: Apache-2.0
"""The training example: a tiny target, a few steps, and a head that the decoder can use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from support.eagle import related_weights, target_features
from support.tiny import CONFIG, LLAMA_CONFIG, plain
from torch import Tensor
from treeattn.decoder import Decoder, Request

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROMPTS = [[i, (7 * i + 3) % 64, (5 * i + 1) % 64] for i in range(24)]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> object:
    pytest.importorskip("safetensors")
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    import train_eagle_head

    return train_eagle_head


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A tiny Llama checkpoint that mostly follows a map from token to next token."""
    from safetensors.torch import save_file

    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    save_file(related_weights()[0], folder / "model.safetensors")
    return folder


def test_the_loss_falls_and_the_head_drafts(example, target: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    prompts, out = tmp_path / "prompts.json", tmp_path / "head"
    prompts.write_text(json.dumps([{"prompt_ids": prompt} for prompt in PROMPTS]))
    options = [
        "--max-new-tokens",
        "24",
        "--draft-vocab",
        "50",
        "--steps",
        "120",
        "--learning-rate",
        "3e-3",
    ]
    files = ["--model", str(target), "--prompts", str(prompts), "--out", str(out)]
    losses = example.main([*files, *options])
    assert len(losses) == 120
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])

    decoder = Decoder.from_pretrained(target)
    drafter = decoder.load_draft_head(out, top_k=3, depth=3)
    new = [[50, 3], [61]]
    outs = decoder.generate(new, max_new_tokens=30, drafter=drafter, num_nodes=8)
    assert [out.tokens for out in outs] == [plain(decoder, prompt, 30) for prompt in new]
    assert 60 / decoder.stats.steps > 1.5


def test_it_trains_the_pass_that_the_drafter_runs(example, target: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    decoder = Decoder.from_pretrained(target)
    ids = torch.arange(3, 43)
    head = example.Head(decoder.config, torch.randn(40, CONFIG.hidden_size))
    tokens = [*range(20, 40)]
    features = target_features(decoder, tokens[:-1])
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_((parameter * 1.5 + 0.1).bfloat16())
        outputs = head(decoder.model.embed(torch.tensor(tokens[1:])), features)
        laws: Tensor = head.logits(outputs).log_softmax(-1)
    example.save(tmp_path / "head", head, ids, "tiny")

    drafter = decoder.load_draft_head(tmp_path / "head", top_k=2, depth=1)
    request = Request(seq=0, tokens=tokens, limit=99)
    drafter.observe_features(request, features)
    (tree,) = drafter.propose([request], 3, "tree")
    best = laws[-1].topk(2)
    assert tree is not None and tree.scores is not None
    assert tree.tokens.tolist() == [tokens[-1], *ids[best.indices].tolist()]
    assert tree.scores[1:].tolist() == pytest.approx(best.values.tolist(), abs=1e-4)


def test_the_draft_vocabulary_is_what_the_target_wrote(example) -> None:  # type: ignore[no-untyped-def]
    def sample(tokens: list[int], num_prompt: int) -> object:
        return example.Sample(torch.tensor(tokens), num_prompt, torch.empty(0))

    samples = [sample([9, 9, 9, 5, 7, 7], 3), sample([8, 5, 7], 1)]
    assert example.draft_vocabulary(samples, 2, 64).tolist() == [5, 7]
    assert example.draft_vocabulary(samples, 4, 64).tolist() == [5, 7, 8, 9]
    assert example.draft_vocabulary(samples, 6, 64).tolist() == [0, 1, 5, 7, 8, 9]
    assert example.draft_vocabulary(samples, 99, 12).tolist() == list(range(12))


def test_prompts_come_as_text_or_json(example, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text, data = tmp_path / "prompts.txt", tmp_path / "prompts.json"
    text.write_text("one\n\ntwo three\n")
    data.write_text(json.dumps(["one", [1, 2], {"prompt": "two"}, {"prompt_ids": [3]}]))
    assert example.read_prompts(text) == ["one", "two three"]
    assert example.read_prompts(data) == ["one", [1, 2], "two", [3]]
