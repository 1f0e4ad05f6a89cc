# SPDX-License-Identifier: Apache-2.0
"""Decodes the recorded prompts of the tests and exports, as JSON, their most telling draft tree.

    python docs/pictures/record.py           writes demo_tree.json beside this file

Needs the model and the extra `gguf`. Draw the file with `treeattn show`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from treeattn import Decoder
from treeattn.cli.model import model_path
from treeattn.cli.recorder import Recorder, pictures, telling
from treeattn.decoder.drafters import SuffixDraft
from treeattn.draw import Picture

PROMPTS = Path(__file__).resolve().parents[2] / "tests" / "data" / "smollm2_golden.json"
MAX_NEW_TOKENS, NUM_NODES = 192, 16


def record() -> Picture:
    """The most telling step of tree decoding over all prompts."""
    decoder = Decoder.from_pretrained(model_path(None))
    tokenizer = decoder.tokenizer
    assert tokenizer is not None
    found: list[Picture] = []
    for entry in json.loads(PROMPTS.read_text("utf-8")):
        prompt = entry["prompt_ids"]
        recorder = Recorder(SuffixDraft())
        (result,) = decoder.generate(
            [prompt], max_new_tokens=MAX_NEW_TOKENS, drafter=recorder, num_nodes=NUM_NODES
        )
        sequence = [*prompt, *result.tokens]
        found += pictures(recorder.trees, sequence, tokenizer, entry["name"])
    return max(found, key=telling)


if __name__ == "__main__":
    target = Path(__file__).resolve().with_name("demo_tree.json")
    fields = {name: value for name, value in asdict(record()).items() if not name.startswith("_")}
    target.write_text(json.dumps(fields, ensure_ascii=False) + "\n", encoding="utf-8")
