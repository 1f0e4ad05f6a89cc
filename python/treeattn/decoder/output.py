# SPDX-License-Identifier: Apache-2.0
"""What of a step's tokens a request keeps, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from treeattn.decoder.request import Request


def append_tokens(request: Request, emitted: Sequence[int]) -> int:
    """Append `emitted` up to the token that ends the request; returns how many were kept.

    Sets `finish_reason`. An end token counts before the budget does: with both at one token the
    reason is "stop".
    """
    for num_kept, token in enumerate(emitted, start=1):
        request.tokens.append(token)
        if token in request.eos_ids or _completes_stop_string(request, token):
            request.finish_reason = "stop"
        elif request.room <= 0:
            request.finish_reason = "length"
        if request.finish_reason is not None:
            return num_kept
    return len(emitted)


def finish_text(request: Request) -> None:
    """Add what an incomplete last character leaves, unless a stop string cut the text."""
    if request.text_stream is not None:
        request.text += request.text_stream.flush()


def _completes_stop_string(request: Request, token: int) -> bool:
    """Grow the text by `token`; cut it before the earliest stop string that is now complete."""
    if request.text_stream is None:
        return False
    start = len(request.text)
    request.text += request.text_stream.feed(token)
    found = [request.text.find(stop, max(0, start - len(stop) + 1)) for stop in request.stop]
    cut = min((index for index in found if index >= 0), default=None)
    if cut is None:
        return False
    request.text, request.text_stream = request.text[:cut], None
    return True
