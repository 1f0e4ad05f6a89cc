# SPDX-License-Identifier: Apache-2.0
"""Which rule of `accept_path` is lossless for which way of drawing a tree."""

from __future__ import annotations

from collections.abc import Sequence

from treeattn.tree import DRAWS

# The draws under which the emitted tokens have exactly the target's law. `typical` is not here: it
# is lossy by design, and so it may be used with any draws.
_LOSSLESS = {
    "greedy": DRAWS,
    "target": DRAWS,
    "multistep": ("iid",),
    "swor": ("swor",),
    "block": ("iid", "swor"),
    "traversal": ("iid", "swor"),
}
_DEFAULT_DRAWS = {"multistep": "iid", "swor": "swor", "block": "iid"}
RULE_NAMES = (*_LOSSLESS, "typical")
_NEEDS_LAWS = tuple(rule for rule, kinds in _LOSSLESS.items() if kinds is not DRAWS)


def check_draws(rule: str, draws: str | Sequence[str | None] | None) -> str | None:
    """The draws that `rule` assumes: `draws`, or the rule's own where that is None.

    greedy, target and typical take any draws, and None stays None. Each entry of a sequence, which
    `TreeBatch.draws` is, is checked; None in it stands for a request without a tree.

    Raises ValueError for an unknown rule, for draws that no tree has, for rule traversal without
    draws, for draws under which the rule would be biased (it names the lossless rules), and for
    trees of different draws under a rule that reads the draft's laws.
    """
    if draws is not None and not isinstance(draws, str):
        kinds = sorted({kind for kind in draws if kind is not None})
        for kind in kinds:
            check_draws(rule, kind)
        if rule not in _NEEDS_LAWS:
            return None
        if len(kinds) > 1:
            raise ValueError(
                f"accept_path: rule {rule} takes trees of one kind of draws in a call, "
                f"got {' and '.join(kinds)}"
            )
        return kinds[0] if kinds else _DEFAULT_DRAWS.get(rule, "swor")
    if rule not in RULE_NAMES:
        raise ValueError(f"accept_path: rule must be one of {', '.join(RULE_NAMES)}, got {rule!r}")
    if draws is not None and draws not in DRAWS:
        raise ValueError(f"accept_path: draws must be one of {', '.join(DRAWS)}, got {draws!r}")
    if rule == "typical":
        return draws
    good = _LOSSLESS[rule]
    if draws is None:
        if rule in ("greedy", "target"):
            return None
        if rule not in _DEFAULT_DRAWS:
            raise ValueError(
                f"accept_path: rule {rule} needs draws, {' or '.join(good)}, got draws=None"
            )
        return _DEFAULT_DRAWS[rule]
    if draws not in good:
        lossless = ", ".join(name for name, kinds in _LOSSLESS.items() if draws in kinds)
        raise ValueError(
            f"accept_path: rule {rule} takes draws {' or '.join(good)}, got draws={draws!r}, "
            f"under which it is biased; lossless there: {lossless}"
        )
    return draws
