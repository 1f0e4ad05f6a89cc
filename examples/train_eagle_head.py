# SPDX-License-Identifier: Apache-2.0
"""Train an EAGLE-style draft head on what its target itself writes, on a CPU in minutes.

    python examples/train_eagle_head.py --prompts prompts.txt --out head/
    treeattn generate "Hello" --drafter eagle --draft-head head/ --nodes 32

The target continues every prompt greedily. The head (one decoder layer, EAGLE, 2401.15077) then
learns, from the target's last hidden state at token t and the embedding of token t + 1, the hidden
state at t + 1 and the law of token t + 2, restricted to the ids that the target uses most. A second
pass over its own outputs teaches it to go on from them (EAGLE-3, 2503.01840, goes further).

The folder holds config.json (`model_type` eagle_head, sizes under Llama's names,
`draft_vocab_size`) and model.safetensors:

    fc.weight [hidden, 2 * hidden]     over rms(embedding), then rms(feature), weightless norms
    layers.0.*                         a Llama layer's tensors
    norm.weight [hidden]               rms norm before the head
    lm_head.weight [draft_vocab_size, hidden]
    d2t [draft_vocab_size] int64       draft id i is the target's id i + d2t[i]

The defaults make a head that shows how it works. A good one wants tens of thousands of tokens:
more prompts, and `--steps` in the thousands.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from treeattn.cli.model import model_path
from treeattn.decoder import Decoder, ModelConfig
from treeattn.decoder.cache import allocate_cache
from treeattn.decoder.forward import prefill
from treeattn.decoder.rotary import inverse_frequencies


@dataclass(frozen=True)
class Sample:
    """One sequence; features: the target's hidden states after the last norm, [tokens, hidden]."""

    tokens: Tensor
    num_prompt: int
    features: Tensor


class Head(nn.Module):
    """The head's forward pass over a whole sequence; parameters are named as in the checkpoint."""

    def __init__(self, config: ModelConfig, lm_head: Tensor) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        q_rows, kv_rows = config.num_qo_heads * dim, config.num_kv_heads * dim
        attention = {"q_proj": (hidden, q_rows), "k_proj": (hidden, kv_rows)}
        attention |= {"v_proj": (hidden, kv_rows), "o_proj": (q_rows, hidden)}
        mlp = dict.fromkeys(("gate_proj", "up_proj"), (hidden, config.intermediate_size))
        mlp |= {"down_proj": (config.intermediate_size, hidden)}
        self.config = config
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        layer = {"self_attn": _linears(attention), "mlp": _linears(mlp)}
        layer |= {
            name: nn.RMSNorm(hidden, config.rms_eps)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
        self.layers = nn.ModuleList([nn.ModuleDict(layer)])
        self.norm = nn.RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, len(lm_head), bias=False)
        self.lm_head.weight.data.copy_(lm_head)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Next features [rows, hidden] of rows at positions 0, 1, ...; inputs [rows, hidden]."""
        (layer,) = self.layers
        x = self.fc(torch.cat((_normed(embedded), _normed(features)), -1))
        x = x + self._attention(layer["self_attn"], layer["input_layernorm"](x))
        y, mlp = layer["post_attention_layernorm"](x), layer["mlp"]
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))

    def logits(self, outputs: Tensor) -> Tensor:
        """Over the draft vocabulary, [rows, draft ids]."""
        return self.lm_head(self.norm(outputs))

    def _attention(self, weights: nn.ModuleDict, y: Tensor) -> Tensor:
        rows, dim = len(y), self.config.head_dim
        q, k, v = (weights[f"{n}_proj"](y).view(rows, -1, dim).transpose(0, 1) for n in "qkv")
        angles = torch.outer(torch.arange(rows).float(), inverse_frequencies(self.config))
        angles = torch.cat((angles, angles), -1)
        q, k = (x * angles.cos() + _half_turned(x) * angles.sin() for x in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return weights["o_proj"](out.transpose(0, 1).flatten(1))


def _linears(sizes: dict[str, tuple[int, int]]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


def _normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


def read_prompts(path: Path) -> list[str | list[int]]:
    """A prompt per line of text, or a JSON list of texts, ids, or objects with one of them."""
    if path.suffix != ".json":
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    entries = json.loads(path.read_text("utf-8"))
    return [
        entry.get("prompt_ids") or entry["prompt"] if isinstance(entry, dict) else entry
        for entry in entries
    ]


def collect(
    decoder: Decoder, prompts: Sequence[str | list[int]], max_new_tokens: int
) -> Iterator[Sample]:
    """What the target writes after each prompt, and its hidden states there."""
    for prompt in prompts:
        if isinstance(prompt, str):
            if decoder.tokenizer is None:
                raise ValueError("prompts are text, but the checkpoint has no tokenizer")
            prompt = decoder.tokenizer.encode_prompt(prompt)
        (out,) = decoder.generate([prompt], max_new_tokens=max_new_tokens)
        tokens = [*prompt, *out.tokens]
        if len(out.tokens) > 1:
            yield Sample(torch.tensor(tokens), len(prompt), hidden_states(decoder, tokens))


@torch.no_grad()
def hidden_states(decoder: Decoder, tokens: Sequence[int]) -> Tensor:
    """The target's features [len(tokens), hidden] fp32."""
    model, embedding = decoder.model, decoder.model.embedding
    chunks: list[Tensor] = []
    cache = allocate_cache(
        model.config,
        num_blocks=len(tokens),
        block_size=1,
        dtype=embedding.dtype,
        device=embedding.device,
    )
    cache.pool.create(0, list(tokens))
    while (done := sum(map(len, chunks))) < len(tokens):
        chunks.append(prefill(model, cache, 0, tokens, done))
    return torch.cat(chunks).float()


def draft_vocabulary(samples: Sequence[Sample], size: int, vocab_size: int) -> Tensor:
    """The ids that the target wrote most, then those of the prompts, then the lowest; ascending."""
    counts: Counter[int] = Counter()
    for sample in samples:
        counts.update(dict.fromkeys(sample.tokens.tolist(), 0))
        counts.update(sample.tokens[sample.num_prompt :].tolist())
    ranked = [token for token, _ in counts.most_common()]
    ranked += [token for token in range(vocab_size) if token not in counts]
    return torch.tensor(sorted(ranked[: min(size, vocab_size)]))


@torch.no_grad()
def target_rows(decoder: Decoder, ids: Tensor) -> Tensor:
    """The rows `ids` of the target's output projection, [len(ids), hidden] fp32."""
    hidden, dtype = decoder.config.hidden_size, decoder.model.embedding.dtype
    units = torch.eye(hidden, dtype=dtype).split(64)
    return torch.cat([decoder.model.head(unit)[:, ids] for unit in units]).float().T


def loss_of(head: Head, decoder: Decoder, sample: Sample, ids: Tensor) -> Tensor:
    """Cross entropy to the target's law and distance of features, for two steps ahead."""
    first = max(sample.num_prompt - 2, 0)  # the row whose law is of the first new token
    with torch.no_grad():
        embedded = decoder.model.embed(sample.tokens[1:]).float()
        wanted = sample.features[1:]
        logits = decoder.model.head(wanted[first:].to(decoder.model.embedding.dtype))
        law = logits.float()[:, ids].softmax(-1)
    features, loss = sample.features[:-1], torch.zeros(())
    for _ in range(2):
        outputs = head(embedded, features)
        log_law = head.logits(outputs[first:]).log_softmax(-1)
        loss = loss - (law * log_law).sum(-1).mean()
        loss = loss + F.smooth_l1_loss(_normed(outputs[first:]), _normed(wanted[first:]))
        features = torch.cat((features[:1], outputs[:-1]))  # each row goes on from the one before
    return loss / 2


def train(
    decoder: Decoder, samples: Sequence[Sample], ids: Tensor, *, steps: int, learning_rate: float
) -> tuple[Head, list[float]]:
    """A head and its loss after each step; a step is one sequence."""
    head = Head(decoder.config, target_rows(decoder, ids))
    optimizer = torch.optim.AdamW(head.parameters(), learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, steps, pct_start=0.1)
    losses: list[float] = []
    start = time.perf_counter()
    for step in range(steps):
        if step % len(samples) == 0:
            order = torch.randperm(len(samples)).tolist()
        loss = loss_of(head, decoder, samples[order[step % len(samples)]], ids)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if (step + 1) % max(1, steps // 10) == 0:
            recent = losses[-max(1, steps // 10) :]
            print(
                f"step {step + 1} of {steps}: loss {sum(recent) / len(recent):.3f}, "
                f"{time.perf_counter() - start:.0f} s",
                file=sys.stderr,
            )
    return head, losses


def save(folder: Path, head: Head, ids: Tensor, target: str) -> None:
    """Write the folder that `Decoder.load_draft_head` reads; weights in bf16."""
    from safetensors.torch import save_file

    cfg = head.config
    fields = {
        "model_type": "eagle_head",
        "target": target,
        "hidden_size": cfg.hidden_size,
        "intermediate_size": cfg.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": cfg.num_qo_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim,
        "rope_theta": cfg.rope_theta,
        "rms_norm_eps": cfg.rms_eps,
        "vocab_size": cfg.vocab_size,
        "draft_vocab_size": len(ids),
        "torch_dtype": "bfloat16",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n", "utf-8")
    tensors = {name: tensor.bfloat16() for name, tensor in head.state_dict().items()}
    tensors["d2t"] = ids - torch.arange(len(ids))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Generate, train, save; returns the losses."""
    parser = argparse.ArgumentParser(description="Train an EAGLE-style draft head on a CPU.")
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="text or JSON")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", type=Path, metavar="PATH", help="default: SmolLM2's wheel")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--draft-vocab", type=int, default=8192, metavar="N")
    parser.add_argument("--steps", type=int, default=300, help="one sequence each (default: 300)")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error(f"--steps must be >= 1, got {args.steps}")
    torch.manual_seed(args.seed)
    path = model_path(args.model)
    decoder = Decoder.from_pretrained(path)
    samples = list(collect(decoder, read_prompts(args.prompts), args.max_new_tokens))
    if not samples:
        parser.error(f"the target writes nothing after the prompts of {args.prompts}")
    print(f"{sum(len(s.tokens) for s in samples)} tokens to learn from", file=sys.stderr)
    ids = draft_vocabulary(samples, args.draft_vocab, decoder.config.vocab_size)
    head, losses = train(decoder, samples, ids, steps=args.steps, learning_rate=args.learning_rate)
    save(args.out, head, ids, path.stem)
    return losses


if __name__ == "__main__":
    main()
