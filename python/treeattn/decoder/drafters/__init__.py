# SPDX-License-Identifier: Apache-2.0
"""Where draft trees come from."""

from treeattn.decoder.drafters.base import (
    Drafter,
    DraftsByLevel,
    DrawsTokens,
    NoDraft,
    ReadsFeatures,
)
from treeattn.decoder.drafters.draft_model import DraftModel
from treeattn.decoder.drafters.drawn import DraftLaws
from treeattn.decoder.drafters.eagle import EagleDraft
from treeattn.decoder.drafters.layer_skip import LayerSkip
from treeattn.decoder.drafters.lookup import PromptLookup
from treeattn.decoder.drafters.suffix import SuffixDraft

__all__ = [
    "DraftLaws",
    "DraftModel",
    "Drafter",
    "DraftsByLevel",
    "DrawsTokens",
    "EagleDraft",
    "LayerSkip",
    "NoDraft",
    "PromptLookup",
    "ReadsFeatures",
    "SuffixDraft",
]
