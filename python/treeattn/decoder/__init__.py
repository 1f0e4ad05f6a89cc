# SPDX-License-Identifier: Apache-2.0
"""The reference decoder: real checkpoints, paged KV, speculative decoding through the ops."""

from treeattn.decoder.config import ModelConfig
from treeattn.decoder.decoder import Decoder
from treeattn.decoder.drafters import (
    Drafter,
    DraftLaws,
    DraftModel,
    DrawsTokens,
    EagleDraft,
    LayerSkip,
    PromptLookup,
    ReadsFeatures,
    SuffixDraft,
)
from treeattn.decoder.options import Options
from treeattn.decoder.request import Generation, Request, Stats
from treeattn.decoder.run import Run
from treeattn.decoder.sampling import Sampling
from treeattn.decoder.tokenizer import TextStream, Tokenizer

__all__ = [
    "Decoder",
    "DraftLaws",
    "DraftModel",
    "Drafter",
    "DrawsTokens",
    "EagleDraft",
    "Generation",
    "LayerSkip",
    "ModelConfig",
    "Options",
    "PromptLookup",
    "ReadsFeatures",
    "Request",
    "Run",
    "Sampling",
    "Stats",
    "SuffixDraft",
    "TextStream",
    "Tokenizer",
]
