# SPDX-License-Identifier: Apache-2.0
"""The reference decoder: load a checkpoint, generate, stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from treeattn.decoder.cache import PagedCache, allocate_cache
from treeattn.decoder.checkpoint import load_checkpoint
from treeattn.decoder.config import ModelConfig
from treeattn.decoder.drafters import (
    Drafter,
    DraftModel,
    EagleDraft,
    LayerSkip,
    NoDraft,
    PromptLookup,
    SuffixDraft,
)
from treeattn.decoder.eagle_head import load_eagle_head
from treeattn.decoder.engine import MAX_ROWS, Engine
from treeattn.decoder.model import Model, build_model
from treeattn.decoder.options import Options
from treeattn.decoder.request import Generation, Request, Stats
from treeattn.decoder.run import Run
from treeattn.decoder.sampling import Sampling
from treeattn.decoder.tokenizer import TextStream, Tokenizer, check_same_vocabulary
from treeattn.schedule import Policy

Prompt: TypeAlias = str | Sequence[int]
PolicyLike: TypeAlias = Policy | str | Path | None


class Decoder:
    """Decodes with a model, its tokenizer and paged KV.

    stats: what the last finished `generate` or `stream` did, all prompts together.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be >= 1, got {block_size}")
        self.model = model
        self.tokenizer = tokenizer
        self.stats = Stats()
        self._block_size = block_size
        self._cache = None if num_blocks is None else self._allocate(num_blocks)
        self._next_seq = itertools.count()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_size: int = 16,
        num_blocks: int | None = None,
    ) -> Decoder:
        """Load a GGUF file, or a folder with config.json and safetensors.

        num_blocks: size of the KV cache, shared by all calls; by default each call takes what its
        prompts need. Raises ValueError naming what of the checkpoint is not supported.
        """
        checkpoint = load_checkpoint(path, dtype)
        model = build_model(checkpoint, torch.device(device))
        return cls(model, checkpoint.tokenizer, block_size=block_size, num_blocks=num_blocks)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        drafter: str | Drafter = "suffix",
        num_nodes: int = 16,
        shape: str = "tree",
        rule: str = "greedy",
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seeds: int | Sequence[int] | None = None,
        eos_ids: Iterable[int] | None = None,
        ignore_eos: bool = False,
        stop: str | Sequence[str] = (),
        repetition_penalty: float = 1.0,
        logprobs: bool = False,
        policy: PolicyLike = None,
    ) -> list[Generation]:
        """Continue every prompt; one result each, in order.

        prompts: token ids, taken as they are, or text, put through the chat template.
        drafter: "none", "lookup", "suffix", "layer_skip" or a `Drafter`: `load_draft_head` and
        `as_drafter_for` give one. num_nodes: budget of a draft, the root counted; of a larger
        draft the likeliest stay, or the first where it has no scores. shape: "tree" or "chain".
        rule: as in `accept_path`, with its temperature, top_k, top_p and min_p; "greedy" ignores
        them, and temperature 0, the default, is greedy under any rule. "multistep", "swor", "block"
        (with shape "chain") and "traversal" need a drafter that draws its tokens: "layer_skip", a
        draft model or head. It draws at the same temperature, a tree of a fixed shape.
        seeds: one for all or one per prompt; drawn by torch's generator when None. eos_ids:
        default, the checkpoint's.
        stop: strings that end a text. logprobs: report each token's under the raw target law.
        policy: a `schedule.Policy` or its file, as `treeattn tune` writes one; it decides shape and
        size of every draft, and whether there is one, in place of num_nodes and shape.

        Raises ValueError naming the argument, before anything is decoded.
        """
        options = Options(
            max_new_tokens=max_new_tokens,
            drafter=drafter,
            num_nodes=num_nodes,
            shape=shape,
            sampling=Sampling(rule, temperature, top_k, top_p, min_p, repetition_penalty),
            seeds=seeds,
            eos_ids=eos_ids,
            ignore_eos=ignore_eos,
            stop=stop,
            logprobs=logprobs,
            policy=_policy(policy),
        )
        with self.start(prompts, options) as run:
            while run.busy:
                run.step()
        self._set_stats(run.requests)
        return run.results()

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int,
        drafter: str | Drafter = "suffix",
        num_nodes: int = 16,
        shape: str = "tree",
        rule: str = "greedy",
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        eos_ids: Iterable[int] | None = None,
        ignore_eos: bool = False,
        stop: str | Sequence[str] = (),
        repetition_penalty: float = 1.0,
        policy: PolicyLike = None,
    ) -> Iterator[int]:
        """Continue one prompt, yielding token ids as they are final; arguments as in `generate`.

        `treeattn.decoder.TextStream` turns the ids into text.
        """
        options = Options(
            max_new_tokens=max_new_tokens,
            drafter=drafter,
            num_nodes=num_nodes,
            shape=shape,
            sampling=Sampling(rule, temperature, top_k, top_p, min_p, repetition_penalty),
            seeds=seed,
            eos_ids=eos_ids,
            ignore_eos=ignore_eos,
            stop=stop,
            logprobs=False,
            policy=_policy(policy),
        )
        return self._stream(self.start([prompt], options))

    def start(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        *,
        prefill_budget: float | None = None,
    ) -> Run:
        """What `generate` does, with the steps left to the caller: to decode in turns with others.

        prefill_budget: prompt tokens read between two steps, None: `engine.PREFILL_BUDGET`; with
        `math.inf` all prompts that find room are read before the first. Runs of a decoder with
        `num_blocks` share them: a step raises OutOfBlocks where another run holds what it needs.
        Raises ValueError naming the argument, before anything is decoded.
        """
        if prefill_budget is not None and not prefill_budget > 0:
            raise ValueError(f"prefill_budget must be > 0, got {prefill_budget}")
        if isinstance(prompts, str):
            raise ValueError("prompts must be a list of prompts, got a single string")
        if options.stop_strings and self.tokenizer is None:
            raise ValueError("stop needs a checkpoint with a tokenizer")
        seeds = options.seeds_for(len(prompts))
        end_ids = options.end_ids(self.config.eos_ids)
        requests = [
            self._request(index, prompt, seed, end_ids, options)
            for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]
        schedule = options.schedule(MAX_ROWS, self.model.embedding.device)
        cache = self._cache or self._allocate(self._blocks_needed(requests, schedule.max_nodes))
        engine = Engine(
            self.model,
            cache,
            self._drafter(options.drafter, cache),
            options.sampling,
            schedule,
            options.logprobs,
            prefill_budget=prefill_budget,
        )
        for request in requests:
            engine.add(request)
        return Run(engine, requests)

    def as_drafter_for(self, target: Decoder, *, num_blocks: int | None = None) -> DraftModel:
        """This model as a drafter for `target`, with KV of its own.

        num_blocks: size of that KV; by default room for one sequence of full length. Raises
        ValueError naming both sizes and the first differing id when the vocabularies differ.
        """
        for name, decoder in (("draft", self), ("target", target)):
            if decoder.tokenizer is None:
                raise ValueError(f"the {name} model has no tokenizer to compare vocabularies by")
        assert self.tokenizer is not None and target.tokenizer is not None
        check_same_vocabulary(
            self.tokenizer.vocabulary,
            self.config.vocab_size,
            target.tokenizer.vocabulary,
            target.config.vocab_size,
        )
        if num_blocks is None:
            num_blocks = -(-self.config.max_position // self._block_size)
        return DraftModel(self.model, self._allocate(num_blocks), target.config.vocab_size)

    def load_draft_head(
        self,
        folder: str | Path,
        *,
        top_k: int = 8,
        depth: int = 5,
        num_blocks: int | None = None,
    ) -> EagleDraft:
        """The EAGLE-style head in `folder` as a drafter for this model, with KV of its own.

        top_k, depth: width and levels of its trees. num_blocks: size of its KV; by default room for
        one sequence of full length. Raises FileNotFoundError, or ValueError naming what of the
        checkpoint does not fit this model.
        """
        head = load_eagle_head(folder, self.model)
        if num_blocks is None:
            num_blocks = -(-self.config.max_position // self._block_size)
        return EagleDraft(head, self._allocate(num_blocks, head.config), top_k=top_k, depth=depth)

    def _stream(self, run: Run) -> Iterator[int]:
        (request,) = run.requests
        num_yielded = request.num_prompt
        with run:
            while run.busy:
                run.step()
                yield from request.tokens[num_yielded:]
                num_yielded = len(request.tokens)
        self._set_stats(run.requests)

    def _request(
        self, index: int, prompt: Prompt, seed: int, end_ids: frozenset[int], options: Options
    ) -> Request:
        tokens = self._encode(index, prompt)
        return Request(
            seq=next(self._next_seq),
            tokens=tokens,
            limit=min(len(tokens) + options.max_new_tokens, self.config.max_position),
            seed=seed,
            eos_ids=end_ids,
            stop=options.stop_strings,
            text_stream=None if self.tokenizer is None else TextStream(self.tokenizer),
        )

    def _encode(self, index: int, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError(f"prompts[{index}] is text, but the checkpoint has no tokenizer")
            tokens = self.tokenizer.encode_prompt(prompt)
        else:
            tokens = [int(token) for token in prompt]
        if not 1 <= len(tokens) <= self.config.max_position:
            raise ValueError(
                f"prompts[{index}] must have 1 to {self.config.max_position} tokens, "
                f"got {len(tokens)}"
            )
        outside = [token for token in tokens if not 0 <= token < self.config.vocab_size]
        if outside:
            raise ValueError(
                f"prompts[{index}] must hold ids in [0, {self.config.vocab_size}), got {outside[0]}"
            )
        return tokens

    def _drafter(self, drafter: str | Drafter, cache: PagedCache) -> Drafter:
        if not isinstance(drafter, str):
            return drafter
        if drafter == "lookup":
            return PromptLookup()
        if drafter == "suffix":
            return SuffixDraft()
        if drafter == "layer_skip":
            return LayerSkip(self.model, cache)
        return NoDraft()

    def _blocks_needed(self, requests: Sequence[Request], num_nodes: int) -> int:
        """Blocks with which no request ever waits."""
        slots = (request.limit + num_nodes for request in requests)
        return max(1, sum(-(-count // self._block_size) for count in slots))

    def _allocate(self, num_blocks: int, config: ModelConfig | None = None) -> PagedCache:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {num_blocks}")
        return allocate_cache(
            config or self.config,
            num_blocks=num_blocks,
            block_size=self._block_size,
            dtype=self.model.embedding.dtype,
            device=self.model.embedding.device,
        )

    def _set_stats(self, requests: Sequence[Request]) -> None:
        self.stats = Stats()
        for request in requests:
            self.stats.add(request.stats)


def _policy(policy: PolicyLike) -> Policy | None:
    if policy is None or isinstance(policy, Policy):
        return policy
    if not Path(policy).is_file():
        raise ValueError(f"policy must be a Policy or its file, got {str(policy)!r}: no such file")
    return Policy.load(policy)
