# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.rules`: tokens per step of every acceptance rule, on drafts of a real drafter.

At each step of a sampled continuation the drafter draws a tree without replacement, one with
replacement, and a chain; the target verifies them, and each rule is run on the same draft under
many seeds. So the rules are compared on equal draws, and a mean has little noise. The continuation
then goes on by plain sampling.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import treeattn
from treeattn.cli.model import DTYPES, load_decoder, model_path
from treeattn.cli.progress import progress
from treeattn.decoder import Decoder, LayerSkip, Request
from treeattn.decoder.cache import PagedCache
from treeattn.decoder.drafters.base import DrawsTokens
from treeattn.decoder.drafters.drawn import without_missing
from treeattn.decoder.forward import node_log_probs, prefill
from treeattn.decoder.sampling import Sampling, draft_laws
from treeattn.tree import DraftTree, pack

TEMPERATURES = (0.2, 0.6, 1.0)
PROMPTS = Path(__file__).parents[1] / "tests" / "data" / "smollm2_golden.json"


@dataclass(frozen=True)
class Setting:
    """A rule on a draft of some shape, drawn in some way."""

    rule: str
    shape: str
    draws: str

    def __str__(self) -> str:
        return f"{self.rule}, {self.shape} {self.draws}"


SETTINGS = (
    Setting("target", "tree", "swor"),
    Setting("swor", "tree", "swor"),
    Setting("traversal", "tree", "swor"),
    Setting("multistep", "tree", "iid"),
    Setting("traversal", "tree", "iid"),
    Setting("target", "chain", "iid"),
    Setting("multistep", "chain", "iid"),
    Setting("block", "chain", "iid"),
)


@dataclass(frozen=True)
class Effort:
    num_nodes: int
    num_steps: int  # per prompt
    num_seeds: int  # per draft and rule


def tokens_per_step(
    decoder: Decoder,
    cache: PagedCache,
    drafter: DrawsTokens,
    prompt: Sequence[int],
    temperature: float,
    effort: Effort,
) -> dict[Setting, list[float]]:
    """Mean tokens of a step, the bonus included, for each step of one continuation."""
    request = Request(seq=0, tokens=[*prompt], limit=len(prompt) + 10_000, seed=1)
    cache.pool.create(request.seq, request.tokens[:-1])
    done = 0
    while done < len(prompt) - 1:
        done += len(prefill(decoder.model, cache, request.seq, request.tokens[:-1], done))
    means: dict[Setting, list[float]] = {setting: [] for setting in SETTINGS}
    try:
        for _ in range(effort.num_steps):
            for shape, draws in dict.fromkeys((s.shape, s.draws) for s in SETTINGS):
                run = _Run(decoder, cache, drafter, request, temperature, effort)
                for setting, tokens in run.means(shape, draws).items():
                    means[setting].append(tokens)
            _advance(decoder, cache, request, temperature)
    finally:
        cache.pool.free(request.seq)
    return means


@dataclass(frozen=True)
class _Run:
    """One draft, under every rule for its kind."""

    decoder: Decoder
    cache: PagedCache
    drafter: DrawsTokens
    request: Request
    temperature: float
    effort: Effort

    def means(self, shape: str, draws: str) -> dict[Setting, float]:
        seq = self.request.seq
        (tree,), laws = self.drafter.draw(
            [self.request],
            self.effort.num_nodes,
            shape,
            draws=draws,
            temperature=self.temperature,
        )
        assert tree is not None
        tree = without_missing(tree)
        (logits,) = node_log_probs(self.decoder.model, self.cache, [tree], [seq])
        batch = pack([tree])
        plan = self.cache.plan(batch, [seq], [self.cache.pool.context_len(seq)])
        means = {}
        for setting in SETTINGS:
            if (setting.shape, setting.draws) != (shape, draws):
                continue
            law = draft_laws(None if setting.rule == "target" else laws, batch)
            total = 0
            for seed in range(self.effort.num_seeds):
                accepted = treeattn.accept_path(
                    logits,
                    batch.tokens,
                    plan,
                    rule=setting.rule,
                    temperature=self.temperature,
                    seeds=seed,
                    draws=draws,
                    **law,
                )
                assert int(accepted.status) == 0
                total += 1 + int(accepted.num_accepted)
            means[setting] = total / self.effort.num_seeds
        return means


def _advance(decoder: Decoder, cache: PagedCache, request: Request, temperature: float) -> None:
    """One token of plain sampling."""
    root = DraftTree.chain(request.tokens[-1:])
    (logits,) = node_log_probs(decoder.model, cache, [root], [request.seq])
    batch = pack([root])
    plan = cache.plan(batch, [request.seq], [cache.pool.context_len(request.seq)])
    accepted = Sampling("target", temperature).accept(logits, batch, plan, [request])
    cache.pool.commit(request.seq, request.tokens[-1:])
    request.tokens.append(int(accepted.next_tokens))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; exit status 1 when a rule falls behind one that it must not."""
    options = _parse(argv)
    decoder = load_decoder(options)
    prompts = [entry["prompt_ids"] for entry in json.loads(PROMPTS.read_text("utf-8"))]
    prompts = prompts[: options.prompts]
    effort = Effort(options.nodes, options.steps, options.seeds)
    longest = max(map(len, prompts)) + effort.num_steps + effort.num_nodes
    cache = decoder._allocate(-(-longest // 16) + 1)
    drafter = LayerSkip(decoder.model, cache, options.layers)
    found: dict[float, dict[Setting, list[float]]] = {}
    with progress(len(TEMPERATURES) * len(prompts), log=True) as advance:
        for temperature in TEMPERATURES:
            steps: dict[Setting, list[float]] = {setting: [] for setting in SETTINGS}
            for i, prompt in enumerate(prompts):
                advance(f"temperature {temperature}, prompt {i + 1}")
                means = tokens_per_step(decoder, cache, drafter, prompt, temperature, effort)
                for setting, of_steps in means.items():
                    steps[setting] += of_steps
            found[temperature] = steps
    rows = {t: {s: mean(m) for s, m in steps.items()} for t, steps in found.items()}
    print(_table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(_as_json(rows, options), indent=2), "utf-8")
    return _report_order(found)


def _table(rows: dict[float, dict[Setting, float]]) -> str:
    lines = [
        "| rule | draft | " + " | ".join(f"temperature {t}" for t in rows) + " |",
        "|---|---|" + "---|" * len(rows),
    ]
    for setting in SETTINGS:
        cells = " | ".join(f"{row[setting]:.3f}" for row in rows.values())
        lines.append(f"| {setting.rule} | {setting.shape}, {setting.draws} | {cells} |")
    return "\n".join(lines)


def _report_order(found: dict[float, dict[Setting, list[float]]]) -> int:
    """On draws without replacement traversal >= swor >= target, up to three standard errors."""
    order = [Setting(rule, "tree", "swor") for rule in ("traversal", "swor", "target")]
    failed = 0
    for temperature, steps in found.items():
        for better, worse in pairwise(order):
            lead = [a - b for a, b in zip(steps[better], steps[worse], strict=True)]
            error = stdev(lead) / len(lead) ** 0.5 if len(lead) > 1 else 0.0
            print(
                f"temperature {temperature}: {better.rule} leads {worse.rule} by "
                f"{mean(lead):.4f} +- {error:.4f}"
            )
            failed |= mean(lead) < -3 * error
    return failed


def _as_json(
    rows: dict[float, dict[Setting, float]], options: argparse.Namespace
) -> dict[str, object]:
    return {
        "nodes": options.nodes,
        "steps": options.steps,
        "seeds": options.seeds,
        "layers": options.layers,
        "rows": [
            {
                "rule": setting.rule,
                "shape": setting.shape,
                "draws": setting.draws,
                "temperature": temperature,
                "tokens_per_step": mean,
            }
            for temperature, row in rows.items()
            for setting, mean in row.items()
        ],
    }


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__)
    parser.add_argument("--model", type=Path, help="default: the installed SmolLM2")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--layers", type=int, default=26, help="of the target, that draft")
    parser.add_argument("--nodes", type=int, default=8, help="of a draft with its root")
    parser.add_argument("--prompts", type=int, default=6, help="the first so many")
    parser.add_argument("--steps", type=int, default=12, help="per prompt and temperature")
    parser.add_argument("--seeds", type=int, default=64, help="per draft and rule")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    model_path(options.model)
    return options


if __name__ == "__main__":
    sys.exit(main())
