"""A snapshot of a write group, without the bytes of its runs: what a leader gives in parts, and a member joins.

It is of the last block that is split on the leader: everything up to there is in the runs. Beside them it has

    queues      of the group: high watermark and log start, as they are now
    topics      the ranges that exist
    producers   what was known of them at that block: of the batches remembered now, those of later blocks are left out

The queues may be younger than the block: whoever gets the snapshot applies every later block, and what a block does to
a queue comes out the same the second time (see `queue_image`). What it does to a producer would not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

import numpy
import numpy.typing

from mainstem.kernel import QueueTable, crc32c
from mainstem.model import Buffer
from mainstem.raft import Membership, RaftError, Snapshot
from mainstem.rpc.method import Method, Reply, ReplyT, RequestT
from mainstem.rpc.snapshots import (
    END,
    PRODUCERS,
    QUEUES,
    RANGES_PER_PART,
    RUNS,
    TOPICS,
    GroupSnapshotPart,
    GroupSnapshotRefused,
    RunRange,
)
from mainstem.rpc.split import RunFile
from mainstem.storage import group_queues
from mainstem.storage.checkpoint import QUEUE_BYTES, RANGE_BYTES
from mainstem.storage.cold_producers import ColdProducers
from mainstem.storage.producer_files import STATE
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.write_group import WriteGroup

PRODUCERS_PER_PART = 1_500
"""Some 230 KB."""

STATE_BYTES_MAX = 1 << 30
"""Of each kind: more queues or producers than a node has memory for."""

ROW_BYTES = {TOPICS: RANGE_BYTES, QUEUES: QUEUE_BYTES, PRODUCERS: STATE.itemsize}

Files = list[tuple[int, int, RunFile]]
"""(after, upto, run), oldest first."""


class Calls(Protocol):
    """Calls to other nodes; `rpc.NodeCalls`, or a simulated network."""

    async def call(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> Reply[ReplyT]: ...

    def stream(
        self, node_id: int, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float
    ) -> AsyncGenerator[Reply[ReplyT], None]: ...


@dataclass
class GroupImage:
    """A snapshot as it was fetched; the state is there if it was asked for."""

    name: Snapshot
    ranges: Files = field(default_factory=list)
    state: dict[str, bytearray] = field(default_factory=lambda: {kind: bytearray() for kind in ROW_BYTES})

    def totals(self) -> dict[str, int]:
        return {RUNS: len(self.ranges), **{kind: len(content) for kind, content in self.state.items()}}


async def parts(
    group: WriteGroup,
    store: QueueStore,
    table: QueueTable,
    producers: ColdProducers,
    belongs: group_queues.Belongs,
    *,
    with_state: bool,
) -> AsyncIterator[Reply[GroupSnapshotPart]]:
    """The newest snapshot of a group that this node leads. Raises `GroupSnapshotRefused`."""
    term = group.term
    try:
        name = group.blocks.snapshot()
    except RaftError as error:
        raise GroupSnapshotRefused(f"write group {group.group}: {error}") from error
    ranges = store.ranges_of(group.group)  # in the same turn: they reach to the very block
    totals = dict.fromkeys((RUNS, *ROW_BYTES), 0)
    totals[RUNS] = len(ranges)
    for first in range(0, len(ranges), RANGES_PER_PART):
        found = [RunRange(*entry) for entry in ranges[first : first + RANGES_PER_PART]]
        yield Reply(_part(name, RUNS, ranges=found))
    if with_state:
        for kind, pieces in (
            (PRODUCERS, _producers(producers, group, name.index)),
            (TOPICS, group_queues.topics(table)),
            (QUEUES, group_queues.rows(table, belongs)),
        ):
            async for piece in pieces:
                totals[kind] += len(piece)
                yield Reply(_part(name, kind, crc=crc32c(piece)), piece)
    if not group.consensus.leads or group.term != term:
        raise GroupSnapshotRefused(f"write group {group.group}: this node does not lead it any more")
    yield Reply(_part(name, END, totals=totals))


def _part(
    name: Snapshot, holds: str, *, crc: int = 0, ranges: list[RunRange] | None = None,
    totals: dict[str, int] | None = None,
) -> GroupSnapshotPart:  # fmt: skip
    voters, learners = sorted(name.membership.voters), sorted(name.membership.learners)
    return GroupSnapshotPart(name.index, name.term, voters, learners, holds, crc, ranges or [], totals or {})


async def _producers(producers: ColdProducers, group: WriteGroup, index: int) -> AsyncIterator[bytes]:
    async for states in producers.all_states(group.group):
        for first in range(0, len(states), PRODUCERS_PER_PART):
            piece = known_at(index, states[first : first + PRODUCERS_PER_PART].tobytes())
            if piece:
                yield piece
            await asyncio.sleep(0)


def known_at(index: int, image: bytes) -> bytes:
    """Of the producers in an image what was known at a block: without batches of later ones, and without those that
    have none left."""
    rows = numpy.frombuffer(image, STATE).copy()
    batches = rows["batches"]
    places = numpy.arange(batches.shape[1])
    kept = (batches["block_index"] <= index) & (places < rows["count"][:, None])
    for cell in batches.dtype.names or ():
        batches[cell][~kept] = 0
    rows["count"] = kept.sum(axis=1)
    return rows[rows["count"] > 0].tobytes()


async def joined(replies: AsyncGenerator[Reply[GroupSnapshotPart], None]) -> GroupImage:
    """Raises ValueError for what is no whole snapshot, and what the call raises."""
    image: GroupImage | None = None
    async with aclosing(replies):
        async for message, attachment in replies:
            name = Snapshot(message.index, message.term, Membership.of(message.voters, message.learners))
            image = image or GroupImage(name)
            if image.name != name or not name.membership.voters or not name.term:
                raise ValueError(f"a part of snapshot {name} in snapshot {image.name}")
            if message.holds == END:
                if message.totals != image.totals():
                    raise ValueError(
                        f"of the snapshot at block {name.index} came {image.totals()}, not {message.totals}"
                    )
                return image
            _take(image, message, attachment)
    raise ValueError("a snapshot without its end")


def _take(image: GroupImage, part: GroupSnapshotPart, attachment: object) -> None:
    if part.holds == RUNS:
        image.ranges += [(entry.after, entry.upto, entry.file) for entry in part.ranges]
        return
    if part.holds not in image.state or not isinstance(attachment, (bytes, bytearray, memoryview)):
        raise ValueError(f"a part of a snapshot that holds {part.holds!r}")
    held: bytearray = image.state[part.holds]
    content: Buffer = attachment
    if len(content) % ROW_BYTES[part.holds] or len(held) + len(content) > STATE_BYTES_MAX:
        raise ValueError(f"{len(content)} bytes of {part.holds} behind {len(held)}")
    if crc32c(content) != part.crc:
        raise ValueError(f"{part.holds} of a snapshot fail their CRC")
    held += content
