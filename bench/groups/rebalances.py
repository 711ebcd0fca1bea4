"""One group through its rebalances: all join at once, one more joins, one leaves, one dies.

Each time is from the cause until every member has its final assignment; that of a death from the end of its session.
The node's processor time is that of the same stretch, the heartbeats of all members included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.errors import BenchError
from bench.groups.administration import new_topic
from bench.groups.board import Board
from bench.groups.players import PLAYERS, Part, Player

SESSION_TIMEOUT_MS = 11_000
"""Of all members. Clients and nodes of both systems have 45 s, which nobody wants to wait for here. No multiple of an
interval of heartbeats: whether the others' heartbeats come just before or just behind the end would be luck."""
SETTLE_SECONDS_MAX = 180.0
QUIET_SECONDS = 1.0
"""Between a rebalance and the next cause: members' heartbeats are as old as that at the cause, with both systems."""
PARTITIONS_PER_MEMBER = 2
PARTITIONS_MAX = 2_000
CONNECTS_AT_ONCE = 100

CAUSES = ("all join", "one more joins", "one leaves", "one is dead")


class Rebalance(NamedTuple):
    cause: str
    seconds: float
    cpu_seconds: float
    """Of the node."""


async def rebalances(
    address: str,
    protocol: str,
    members: int,
    cpu: Callable[[], float],
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
) -> list[Rebalance]:
    """One for each of `CAUSES`; `cpu` gives what the node took so far. The node must have this session timeout,
    too. Raises BenchError, and TimeoutError for a group that does not settle."""
    partitions = min(PARTITIONS_PER_MEMBER * members, PARTITIONS_MAX)
    name = f"{protocol}-{members}-{time.time_ns()}"
    topic_id = await new_topic(address, name, partitions)
    board = Board(partitions)
    part = Part(address, f"group-{name}", name, topic_id, partitions, board, session_timeout_ms)
    players = [PLAYERS[protocol](part) for _ in range(members + 1)]
    found: list[Rebalance] = []

    async def settled(cause: str, begun: float, cpu_before: float) -> None:
        settled_at = await board.settled(SETTLE_SECONDS_MAX)
        found.append(Rebalance(cause, settled_at - begun, cpu() - cpu_before))
        await asyncio.sleep(QUIET_SECONDS)

    try:
        await connected(players)
        *first, late = players
        board.expect(members)
        begun, before = time.monotonic(), cpu()
        for player in first:
            player.start()
        await settled("all join", begun, before)

        board.expect(members + 1)
        begun, before = time.monotonic(), cpu()
        late.start()
        await settled("one more joins", begun, before)

        board.expect(members)
        begun, before = time.monotonic(), cpu()
        await late.leave()
        await settled("one leaves", begun, before)

        board.expect(members - 1)
        dead = first[-1]
        await dead.die()
        over = dead.last_heard_at + session_timeout_ms / 1000
        await asyncio.sleep(over - time.monotonic())
        await settled("one is dead", over, cpu())
        for player in first[:-1]:
            await player.die()
    finally:
        for player in players:
            player.close()
    if protocol == "consumer" and board.shared:
        raise BenchError(f"{board.shared} times a partition had two readers")
    return found


async def connected(players: list[Player]) -> None:
    places = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def connect(player: Player) -> None:
        async with places:
            await player.connect()

    await asyncio.gather(*(connect(player) for player in players))
