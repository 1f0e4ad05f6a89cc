# SPDX-License-Identifier: Apache-2.0
"""Decodes the demo's prompts and exports, as JSON, a draft tree that shows branches and a path.

    python docs/pictures/record.py           writes demo_tree.json beside this file

Needs the model and the extra `gguf`. Draw the file with `treeattn show`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from treeattn import Decoder
from treeattn.cli.model import model_path
from treeattn.cli.recorder import Recorder, pictures
from treeattn.decoder.drafters import SuffixDraft
from treeattn.draw import Picture

MAX_NEW_TOKENS, NUM_NODES = 64, 16  # the demo's defaults


def record() -> Picture:
    """The step with most accepted tokens times leaves.

    Drafts are made wherever one token matches, and unlikely branches are kept: more to see than in
    the trees that are worth their rows.
    """
    decoder = Decoder.from_pretrained(model_path(None))
    tokenizer = decoder.tokenizer
    assert tokenizer is not None
    found: list[Picture] = []
    prompts = json.loads((files("treeattn.cli") / "demo_prompts.json").read_text("utf-8"))
    for entry in prompts:
        prompt = tokenizer.encode_prompt(entry["prompt"])
        recorder = Recorder(SuffixDraft(min_match=1, min_prob=0.02))
        (result,) = decoder.generate(
            [prompt], max_new_tokens=MAX_NEW_TOKENS, drafter=recorder, num_nodes=NUM_NODES
        )
        sequence = [*prompt, *result.tokens]
        found += pictures(recorder.trees, sequence, tokenizer, entry["name"])
    return max(found, key=_telling)


def _telling(picture: Picture) -> int:
    num_leaves = len(picture.parents) - len({p for p in picture.parents if p >= 0})
    return len(picture.accepted) * min(num_leaves, 4)


if __name__ == "__main__":
    target = Path(__file__).resolve().with_name("demo_tree.json")
    fields = {name: value for name, value in asdict(record()).items() if not name.startswith("_")}
    target.write_text(json.dumps(fields, ensure_ascii=False) + "\n", encoding="utf-8")
