"""A snapshot of a write group without the bytes of its runs: a leader gives it in parts, and a member joins these.

A snapshot stands at the last block that is split on the leader: all blocks up to it are in the runs. Besides these it
has

    queues      of the write group: high watermark and log start, as they are now
    topics      the ranges that exist
    producers   their states at that block: of the batches remembered now, those of later blocks are left out

    transactions    which are open and which were aborted, as they are now, where there ever was one

    remote      which files count in the remote tier, where it was ever used

    moves       of slots, as the log up to the block tells, and where moved queues have been; it comes first

The queues may be younger than the block: the member applies every later block, and applying a block to a queue twice
changes nothing (see `queue_image`). Applying it to a producer twice would. The remote tier may be younger, too: its
changes are numbered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import msgspec
import numpy

from mainstem.kernel import QueueTable, crc32c
from mainstem.model import Buffer
from mainstem.raft import Membership, RaftError, Snapshot
from mainstem.rpc.messages.snapshots import (
    END,
    MOVES,
    PRODUCERS,
    QUEUES,
    RANGES_PER_PART,
    REMOTE,
    RUNS,
    TOPICS,
    TRANSACTIONS,
    DescribedRange,
    RemoteStanding,
    WriteGroupSnapshotPart,
    WriteGroupSnapshotRefused,
)
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.copies.queue_offsets import OffsetsOfQueues
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.decided.remote_pages import RemoteImage, pages
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.state import write_group_queues
from mainstem.storage.state.checkpoint import QUEUE_BYTES, RANGE_BYTES
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.state.producers.producer_rows import STATE, known_at
from mainstem.storage.state.queue_image import QUEUE_CELLS
from mainstem.storage.state.slot_moves import MovesTold, SlotMoves
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_group_transactions import ROW_BYTES as TRANSACTION_BYTES

TRANSACTIONS_PER_PART = 4_000
"""Rows in one part: some 220 KB."""

PRODUCERS_PER_PART = 1_500
"""Rows in one part: some 230 KB."""

HISTORIES_PER_PART = 1_000
"""Histories of queues in one part: some 30 KB, and with the most stays 300."""

MOVES_BYTES_MAX = 64 << 20
"""Bytes of moves in a snapshot: more than the histories that a node keeps, and fences of every slot."""

STATE_BYTES_MAX = 1 << 30
"""Rows of each kind in a snapshot: more queues or producers than a node has memory for."""

ROW_BYTES = {TOPICS: RANGE_BYTES, QUEUES: QUEUE_BYTES, PRODUCERS: STATE.itemsize, TRANSACTIONS: TRANSACTION_BYTES}
ALWAYS_TOLD = frozenset({TOPICS, QUEUES, PRODUCERS})
"""The kinds whose totals are told where they are 0, too."""

_moves = msgspec.msgpack.Decoder(MovesTold)

Files = list[tuple[int, int, StoreFile]]
"""(after, upto, run), oldest first."""


@dataclass
class WriteGroupImage:
    """A fetched snapshot; it has the state if the caller asked for it."""

    name: Snapshot
    ranges: Files = field(default_factory=list)
    state: dict[str, bytearray] = field(default_factory=lambda: {kind: bytearray() for kind in ROW_BYTES})
    remote: RemoteImage | None = None
    """None: the remote tier was never used, as far as the sender knows."""
    moves: MovesTold = field(default_factory=MovesTold)
    moves_bytes: int = 0

    def totals(self) -> dict[str, int]:
        remote = {} if self.remote is None else {REMOTE: self.remote.named}
        sizes = {kind: len(held) for kind, held in self.state.items() if held or kind in ALWAYS_TOLD}
        moves = {MOVES: self.moves_bytes} if self.moves_bytes else {}
        return {RUNS: len(self.ranges), **remote, **moves, **sizes}


def log_starts_of(image: WriteGroupImage) -> OffsetsOfQueues:
    """The log starts of the write group's queues, of an image that has the state."""
    cells = numpy.frombuffer(bytes(image.state[QUEUES]), numpy.int64).reshape(-1, QUEUE_CELLS)
    return OffsetsOfQueues(cells[:, 0].astype(numpy.uint64), cells[:, 2])


async def parts(
    group: WriteGroup,
    store: QueueStore,
    table: QueueTable,
    producers: ColdProducers,
    remote: RemoteTier,
    moves: SlotMoves,
    *,
    with_state: bool,
) -> AsyncIterator[Reply[WriteGroupSnapshotPart]]:
    """Yield the newest snapshot of a write group that this node leads. Raises `WriteGroupSnapshotRefused`."""
    term = group.term
    try:
        name = group.blocks.snapshot()
    except RaftError as error:
        raise WriteGroupSnapshotRefused(f"write group {group.group}: {error}") from error
    spans = store.manifest.spans(group.group)  # in the same turn, so that they end at exactly this block
    told = moves.told_of(group.group, name.index)  # in the same turn, too
    totals = dict.fromkeys((RUNS, *ALWAYS_TOLD), 0)
    totals[RUNS] = spans.file_count
    ranges = (DescribedRange(after, upto, file.message()) for after, upto, file in spans.described())
    while found := list(islice(ranges, RANGES_PER_PART)):
        yield Reply(_part(name, RUNS, ranges=found))
    for piece in moves_pieces(told):
        totals[MOVES] = totals.get(MOVES, 0) + len(piece)
        yield Reply(_part(name, MOVES, crc=crc32c(piece)), piece)
    if with_state:
        placement, later = moves.placement, partial(moves.comes_later, group.group, name.index)
        left = moves.left.get(group.group, {}).keys()
        for kind, pieces in (
            (PRODUCERS, _producers(producers, group, name.index)),
            (TOPICS, write_group_queues.topics(table)),
            (QUEUES, write_group_queues.rows(table, write_group_queues.in_group(placement, group.group, later))),
            (QUEUES, write_group_queues.rows_left(table, placement, group.group, later)),
            (QUEUES, write_group_queues.log_starts_left(table, placement, group.group, left, later)),
        ):
            async for piece in pieces:
                totals[kind] += len(piece)
                yield Reply(_part(name, kind, crc=crc32c(piece)), piece)
        image = group.transactions.image(group.applied_index)
        for first in range(0, len(image), TRANSACTION_BYTES * TRANSACTIONS_PER_PART):
            piece = image[first : first + TRANSACTION_BYTES * TRANSACTIONS_PER_PART]
            totals[TRANSACTIONS] = totals.get(TRANSACTIONS, 0) + len(piece)
            yield Reply(_part(name, TRANSACTIONS, crc=crc32c(piece)), piece)
        try:
            async for page in pages(remote, group.group):
                totals[REMOTE] = totals.get(REMOTE, 0) + page.named
                yield Reply(_part(name, REMOTE, ranges=page.ranges, remote=page.standing))
        except StorageError as error:
            raise WriteGroupSnapshotRefused(f"write group {group.group}: {error}") from error
    if not group.consensus.leads or group.term != term:
        raise WriteGroupSnapshotRefused(f"write group {group.group}: this node does not lead it any more")
    yield Reply(_part(name, END, totals=totals))


def _part(
    name: Snapshot, holds: str, *, crc: int = 0, ranges: list[DescribedRange] | None = None,
    totals: dict[str, int] | None = None, remote: RemoteStanding | None = None,
) -> WriteGroupSnapshotPart:  # fmt: skip
    voters, learners = sorted(name.membership.voters), sorted(name.membership.learners)
    return WriteGroupSnapshotPart(
        name.index, name.term, voters, learners, holds, crc, ranges or [], totals or {}, remote
    )


async def _producers(producers: ColdProducers, group: WriteGroup, index: int) -> AsyncIterator[bytes]:
    """Yield the producers as of block `index`. Raises `WriteGroupSnapshotRefused` when some cannot be read now."""
    try:
        async for states in producers.all_states(group.group):
            for first in range(0, len(states), PRODUCERS_PER_PART):
                piece = known_at(index, states[first : first + PRODUCERS_PER_PART].tobytes())
                if piece:
                    yield piece
                await asyncio.sleep(0)
    except StorageError as error:
        raise WriteGroupSnapshotRefused(
            f"write group {group.group}: not all producers can be given: {error}"
        ) from error


async def joined(replies: AsyncGenerator[Reply[WriteGroupSnapshotPart], None]) -> WriteGroupImage:
    """Join the parts of a snapshot. Raises ValueError when they are no whole snapshot, and the call's own errors."""
    image: WriteGroupImage | None = None
    async with aclosing(replies):
        async for message, attachment in replies:
            name = Snapshot(message.index, message.term, Membership.of(message.voters, message.learners))
            image = image or WriteGroupImage(name)
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


def _take(image: WriteGroupImage, part: WriteGroupSnapshotPart, attachment: object) -> None:
    if part.holds == RUNS:
        image.ranges += [(entry.after, entry.upto, StoreFile.of(entry.file)) for entry in part.ranges]
        return
    if part.holds == REMOTE and part.remote is not None:
        image.remote = image.remote or RemoteImage.begun(part.remote)
        image.remote.take(part.remote, part.ranges)
        return
    if part.holds == MOVES and isinstance(attachment, (bytes, bytearray, memoryview)):
        _take_moves(image, part, attachment)
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


def moves_pieces(told: MovesTold) -> Iterator[bytes]:
    """Encode moves in pieces for one part each; none where nothing moved."""
    if told.fences or told.arrivals or told.needs:
        yield msgspec.msgpack.encode(MovesTold(told.fences, told.arrivals, needs=told.needs))
    histories = iter(told.histories.items())
    while some := dict(islice(histories, HISTORIES_PER_PART)):
        yield msgspec.msgpack.encode(MovesTold(histories=some))


def _take_moves(image: WriteGroupImage, part: WriteGroupSnapshotPart, content: Buffer) -> None:
    if crc32c(content) != part.crc:
        raise ValueError("moves in a snapshot fail their CRC")
    image.moves_bytes += len(content)
    if image.moves_bytes > MOVES_BYTES_MAX:
        raise ValueError(f"{image.moves_bytes} bytes of moves in a snapshot")
    piece, so_far = _moves.decode(content), image.moves  # raises a ValueError
    image.moves = MovesTold(
        {**so_far.fences, **piece.fences},
        {**so_far.arrivals, **piece.arrivals},
        {**so_far.histories, **piece.histories},
        [*so_far.needs, *piece.needs],
    )
