"""Very many groups: what they hold of a node, and how long they are without their coordinator when it dies."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.errors import BenchError
from bench.groups.administration import coordinators, new_topic
from bench.groups.board import Board
from bench.groups.offsets import Back, answered, committed
from bench.groups.players import PLAYERS, Part, Player
from bench.groups.rebalances import SESSION_TIMEOUT_MS, SETTLE_SECONDS_MAX, connected
from bench.nodes.turning_node import turns_of
from bench.systems.mainstem import TURNS_SOCKET
from bench.systems.system import Node

TOPIC = "of-many"
PARTITIONS = 10
LIVE_GROUPS = 1_000
PROBES = 2_000
"""Groups that are asked after a failover: each partition of the internal topic has many of them."""
REST_SECONDS = 3.0
"""Between a load and the look at the memory it left."""
JCMD_SECONDS_MAX = 60.0


class Figure(NamedTuple):
    what: str
    value: float
    unit: str


def names(count: int) -> list[str]:
    return [f"many-{number:06}" for number in range(count)]


def probes(group_ids: list[str]) -> list[str]:
    return group_ids[:: max(1, len(group_ids) // PROBES)]


def held(node: Node) -> int:
    """Bytes of memory that a node holds: its proportional set size; of a JVM, its heap after a collection, since the
    heap's size is a setting. Raises BenchError."""
    if node.http is not None:
        return node.memory().proportional
    total = 0
    for pid in node.tree.roots:
        for command in ("GC.run", "GC.heap_info"):
            done = subprocess.run(
                ["jcmd", str(pid), command], capture_output=True, text=True, timeout=JCMD_SECONDS_MAX, check=True
            )
        found = re.search(r"used (\d+)K", done.stdout)
        if found is None:
            raise BenchError(f"jcmd tells no size of the heap: {done.stdout[:200]}")
        total += 1024 * int(found[1])
    return total


def longest_turn(node: Node) -> list[Figure]:
    """Since it was asked last; nothing of Kafka."""
    if node.http is None:
        return []
    turns = turns_of(node.setup.directory / TURNS_SOCKET)
    what = f"{turns.collections:.0f} ms collections of garbage; {turns.what[:90]}"
    return [Figure(f"longest turn of the event loop ({what})", turns.longest, "ms")]


async def one_node(node: Node, start_again: Callable[[], Node], count: int) -> tuple[Node, list[Figure]]:
    """The figures of a fresh node, and the node that took its place."""
    group_ids = names(count)
    await new_topic(node.address, TOPIC, PARTITIONS)
    await coordinators(node.address, ["idle"])
    await asyncio.sleep(REST_SECONDS)
    longest_turn(node)
    found: list[Figure] = []
    before = held(node)
    for partitions in (1, PARTITIONS):
        seconds = await committed(node.address, group_ids, TOPIC, range(partitions))
        found.append(Figure(f"commits of {partitions} partitions each", count / seconds, "groups/s"))
        await asyncio.sleep(REST_SECONDS)
        found += longest_turn(node)
        each = (held(node) - before) / count
        found.append(Figure(f"memory per group with offsets of {partitions}", each, "B"))
    before = held(node)
    live = await _live(node.address, group_ids[:LIVE_GROUPS])
    await asyncio.sleep(REST_SECONDS)
    each = (held(node) - before) / len(live)
    found.append(Figure("memory more per group with a live member and its connection", each, "B"))
    for player in live:
        await player.die()
        player.close()
    found += longest_turn(node)
    node.kill()
    since = time.monotonic()
    node = await asyncio.to_thread(start_again)
    found.append(Figure("started again: until it tells its metadata", time.monotonic() - since, "s"))
    longest_turn(node)  # of its start, before which nobody waits for it
    back = await answered([node.address], probes(group_ids), TOPIC, since)
    found += _of_back("started again", back)
    return node, found + longest_turn(node)


async def three_nodes(node: Node, count: int) -> list[Figure]:
    """The figures of a failover in a fresh cluster."""
    group_ids = names(count)
    await new_topic(node.address, TOPIC, PARTITIONS, len(node.addresses))
    await coordinators(node.address, ["idle"])
    seconds = await committed(node.address, group_ids, TOPIC, [0])
    found = [Figure("three nodes: commits of a partition each", count / seconds, "groups/s")]
    places = await coordinators(node.address, probes(group_ids))
    victim = max(node.addresses, key=list(places.values()).count)
    lost = [group_id for group_id, address in places.items() if address == victim]
    node.kill_one(victim)
    since = time.monotonic()
    back = await answered([address for address in node.addresses if address != victim], lost, TOPIC, since)
    return found + _of_back("one of three killed", back)


def _of_back(what: str, back: Back) -> list[Figure]:
    return [
        Figure(f"{what}: first group answers", back.first, "s"),
        Figure(f"{what}: all groups answer", back.all, "s"),
    ]


async def _live(address: str, group_ids: list[str]) -> list[Player]:
    """A member in each group, of both protocols in turn, with all its partitions."""
    topic_id = await new_topic(address, "of-live", PARTITIONS)
    players: list[Player] = []
    for number, group_id in enumerate(group_ids):
        kind = list(PLAYERS.values())[number % len(PLAYERS)]
        board = Board(PARTITIONS)
        board.expect(1)
        players.append(kind(Part(address, group_id, "of-live", topic_id, PARTITIONS, board, SESSION_TIMEOUT_MS)))
    await connected(players)
    for player in players:
        player.start()
    await asyncio.gather(*(player.part.board.settled(SETTLE_SECONDS_MAX) for player in players))
    return players
