# SPDX-License-Identifier: Apache-2.0
"""Growing the drafts of several requests abreast: which of them ask for another level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from treeattn.decoder.request import Request
from treeattn.schedule.levels import Frontier

# Below which nodes of each request's frontier the next level is worth asking for.
Worth: TypeAlias = Callable[[Sequence[Request], Sequence[Frontier]], list[list[bool]]]


class Growing(Protocol):
    """A tree on its way. frontier: the nodes whose laws it wants next; empty when it is done."""

    @property
    def frontier(self) -> Sequence[int]: ...


class Prunable(Growing, Protocol):
    """One whose branches may be stopped, because its tokens were not drawn."""

    def candidates(self) -> Frontier: ...

    def narrow(self, kept: Sequence[bool]) -> None:
        """Ask below those frontier nodes only whose `kept` is set."""
        ...


_Growing = TypeVar("_Growing", bound=Growing)
_Prunable = TypeVar("_Prunable", bound=Prunable)


def every_level(growths: Mapping[Request, _Growing]) -> Iterator[dict[Request, _Growing]]:
    """Those that want laws, until none does; the caller expands what it is given."""
    while growing := {request: tree for request, tree in growths.items() if tree.frontier}:
        yield growing


def levels_worth(
    growths: Mapping[Request, _Prunable], worth: Worth
) -> Iterator[dict[Request, _Prunable]]:
    """`every_level`, without the branches that are not worth it; ends early when none is."""
    for growing in every_level(growths):
        frontiers = [tree.candidates() for tree in growing.values()]
        for tree, kept in zip(growing.values(), worth([*growing], frontiers), strict=True):
            tree.narrow(kept)
        if asked := {request: tree for request, tree in growing.items() if tree.frontier}:
            yield asked
