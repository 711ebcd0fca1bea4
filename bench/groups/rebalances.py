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


class Meter(NamedTuple):
    """The node's own part in a rebalance."""

    cpu: Callable[[], float]
    """Seconds of processor time so far."""
    turn_ms: Callable[[], float | None] = lambda: None
    """The longest turn of its event loop since it was asked last; None: it does not tell."""
    memory: Callable[[], int | None] = lambda: None
    """Bytes that it holds; None: they do not say what members cost."""


class Rebalance(NamedTuple):
    cause: str
    seconds: float
    cpu_seconds: float
    """Of the node."""
    turn_ms: float | None = None
    """The longest turn of its event loop."""
    member_bytes: float | None = None
    """The memory that it holds more for each member, with its connection, once all have joined."""


async def rebalances(
    address: str,
    protocol: str,
    members: int,
    meter: Meter,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
) -> list[Rebalance]:
    """One for each of `CAUSES`. The node must have this session timeout, too. Raises BenchError, and TimeoutError for a
    group that does not settle."""
    cpu = meter.cpu
    partitions = min(PARTITIONS_PER_MEMBER * members, PARTITIONS_MAX)
    name = f"{protocol}-{members}-{time.time_ns()}"
    topic_id = await new_topic(address, name, partitions)
    board = Board(partitions)
    part = Part(address, f"group-{name}", name, topic_id, partitions, board, session_timeout_ms)
    players = [PLAYERS[protocol](part) for _ in range(members + 1)]
    found: list[Rebalance] = []

    async def settled(cause: str, begun: float, cpu_before: float) -> None:
        settled_at = await board.settled(SETTLE_SECONDS_MAX)
        cpu_seconds = cpu() - cpu_before
        await asyncio.sleep(QUIET_SECONDS)
        after = None if found else meter.memory()
        more = None if after is None or empty is None else (after - empty) / members
        found.append(Rebalance(cause, settled_at - begun, cpu_seconds, meter.turn_ms(), more))

    empty = meter.memory()
    meter.turn_ms()
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
