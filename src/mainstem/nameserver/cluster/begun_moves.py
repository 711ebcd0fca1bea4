"""Begins the moves of a rebalance, and goes on past those that the metadata refuses by now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.state.plans.balance_plan import BalanceMove


class MovingOperations(Protocol):
    """As `nameserver.operations`."""

    async def move_replica(self, group: int, old: int, new: int | None = None, *, why: str = "") -> int: ...

    async def prefer_leader(self, group: int, node_id: int, *, why: str = "") -> None: ...


async def begin_moves(
    moves: Iterable[BalanceMove], operations: MovingOperations
) -> tuple[list[BalanceMove], list[str]]:
    """The moves that have begun, and in words why the others were refused: the metadata may have changed since they
    were planned. Raises `MetadataUnavailable`, as the rest would wait in vain, too."""
    begun: list[BalanceMove] = []
    refused: list[str] = []
    for move in moves:
        try:
            if move.preferred:
                await operations.prefer_leader(move.group, move.new, why=move.why)
            else:
                await operations.move_replica(move.group, move.old, move.new, why=move.why)
        except MetadataUnavailable:
            raise
        except NameserverError as error:
            refused.append(str(error))
        else:
            begun.append(move)
    return begun, refused
