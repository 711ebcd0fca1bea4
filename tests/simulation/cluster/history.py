"""The events, as an all-knowing observer writes it down, and what therefore must hold.

The observer sees every block that any node applies. The first to apply a block of a group says what it is; whoever
applies it after that, on any node and in any life, must apply the very same (J). The blocks of a group, one after the
other, are the history of its queues: offsets without a gap (C), producers' sequences without a gap or a repeat (D),
nothing that nobody sent, or whose sender was told that it is refused. All that any node serves at any time is compared
with it (B), and so are the records acknowledged with acks=all, once everything has come to rest (A).

Batches are told apart by their own CRC, which covers all of them but what a leader stamps: every batch that clients
send is unique.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy
from tests.simulation.cluster.compacted import IDENTITY, CompactedQueue
from tests.simulation.oracle import require

from mainstem.kernel.batch_header import CONTROL_BIT
from mainstem.model import Buffer, topic_number_of
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW, KIND_DATA, BlockHeader
from mainstem.storage.write_groups import control

if TYPE_CHECKING:
    from tests.simulation.tiered.remote_objects import RemoteObjects

CRC_AT = slice(17, 21)
CHECKED_FROM = 21
"""Of a record batch: its CRC, and the first byte that is covered by it."""


class Block(NamedTuple):
    """A committed block: everything that must be the same on every node."""

    term: int
    index: int  # type: ignore[assignment]
    kind: int
    created_ms: int
    payload_length: int
    payload_crc: int
    directory: bytes


class Committed(NamedTuple):
    """A batch of a queue's history."""

    base_offset: int
    end: int
    leader_epoch: int
    crc: int
    index: int  # type: ignore[assignment]
    """Of its block."""
    length: int
    max_timestamp: int
    is_marker: bool
    """The control batch that ends a transaction, with the time of the clock of whichever node wrote it."""
    group: int
    """The write group of its block."""


@dataclass
class QueueHistory:
    queue_id: int
    log_start: int = 0
    deleted: bool = False
    """Its topic was, in the log of its group. Messages behind that are nobody's any more."""
    batches: list[Committed] = field(default_factory=list)
    promises: dict[int, int] = field(default_factory=dict)
    """Base offset → CRC of what was acknowledged with acks=all."""
    promised_end: int = 0
    """Behind the last batch that was acknowledged with acks=all."""
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id → its newest epoch, and the next sequence number it must use in that."""

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def end_after(self, index: int) -> int:
        """The end once block `index` was applied."""
        number = bisect_right(self.batches, index, key=lambda kept: kept.index)
        return self.batches[number - 1].end if number else 0

    def end_applied(self, applied: Mapping[int, int]) -> int:
        """The end once these blocks, by write group, were applied."""
        return next((kept.end for kept in reversed(self.batches) if kept.index <= applied[kept.group]), 0)

    def arrives_at(self, offset: int) -> bool:
        """Whether the batch that begins there is the first behind a move to another write group."""
        place = self.place(offset)
        return 0 < place < len(self.batches) and self.batches[place].group != self.batches[place - 1].group

    def arrives_between(self, first: int, last: int) -> bool:
        """Whether the queue moved to another write group behind the batch that holds the first of these offsets, and
        not behind that which holds the last."""
        groups = {kept.group for kept in self.batches[self.place(first) : self.place(last) + 1]}
        return len(groups) > 1

    def place(self, offset: int) -> int:
        """Which batch holds an offset."""
        return bisect_right(self.batches, offset, key=lambda kept: kept.end)

    def block_of(self, offset: int) -> int:
        """The block that brought an offset; 0: none has."""
        place = self.place(offset)
        return self.batches[place].index if place < len(self.batches) else 0


class History:
    """Of all groups and queues of a run."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[Block]] = {}
        """Per group, block 1 first."""
        self.queues: dict[int, QueueHistory] = {}
        self.sent: dict[int, bytes] = {}
        """CRC → a batch as it was sent, from the CRC field's end on."""
        self.attempts: dict[int, int] = {}
        """CRC → how often it was sent and not refused."""
        self.meant_for: dict[int, int] = {}
        """CRC → the offset that the owner of a queue meant a batch for."""
        self.committed: dict[int, int] = {}
        """CRC → how often it was committed."""
        self.commands: dict[tuple[int, int], list[control.Command]] = {}
        """(group, block index) → the commands in it."""
        self._obeyed: dict[tuple[int, int], int] = {}
        """(node, group) → how many commands of its newest block the node has applied."""
        self.may_move: Callable[[QueueHistory, int], None] = lambda queue, start: None
        """Raises `Violation` where nobody had a reason to move a log start there."""
        self.forsaken: set[int] = set()
        """Numbers of topics that somebody wanted to be deleted: nothing is promised of them any more."""
        self.may_delete: Callable[[int], None] = lambda topic_number: None
        """Raises `Violation` where nobody wants a topic to be gone."""
        self.deleted_topics: set[int] = set()
        """Numbers of topics whose deletion stands in the log of some write group. A node that has applied it there has
        their queues of no write group any more, so the next leader of another one may find none to delete."""
        self.group_of: Callable[[int], int] = lambda queue_id: 0
        self.remote: RemoteObjects | None = None
        """In a cluster with a remote tier: the observer of its changes."""
        self.compacted: dict[int, CompactedQueue] = {}
        """By queue id, those of which records may be gone."""
        self.sent_whole: dict[int, bytes] = {}
        """CRC → a batch as it was sent, where there are such queues, or somebody reads batches."""
        self.keeps_whole = False
        self.followers: list[Callable[[str, QueueHistory, numpy.void], None]] = []
        """Are told of the next row of a queue's log. They raise `Violation`."""
        self._trace = hashlib.blake2b(digest_size=16)

    def note(self, *what: object) -> None:
        """Something that another run of the same seed must see as well, in the same order."""
        self._trace.update(repr(what).encode())

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    def queue(self, queue_id: int) -> QueueHistory:
        found = self.queues.get(queue_id)
        if found is None:
            found = self.queues[queue_id] = QueueHistory(queue_id)
        return found

    # --- from the nodes -----------------------------------------------------------------------------------

    def applied(self, node_id: int, header: BlockHeader, directory: Buffer, payload: memoryview | None) -> None:
        """A node applies a block."""
        what = f"node {node_id}, write group {header.group}, block {header.index}"
        block = Block(
            header.term,
            header.index,
            header.kind,
            header.created_ms,
            header.payload_length,
            header.payload_crc,
            bytes(directory),
        )
        blocks = self.blocks.setdefault(header.group, [])
        require(header.index <= len(blocks) + 1, f"{what}: nobody has applied block {len(blocks) + 1}", "J")
        self.note("applied", node_id, header.group, header.index, header.term)
        self._obeyed[node_id, header.group] = 0
        rows = numpy.frombuffer(directory, DIRECTORY_ROW) if header.kind == KIND_DATA else ()
        if payload is not None:
            for row in rows:
                start = int(row["position"])
                self._check_bytes(what, payload[start : start + int(row["length"])], int(row["crc"]))
        if header.index <= len(blocks):
            known = blocks[header.index - 1]
            require(known == block, f"{what}: applied {block[:6]}, others {known[:6]}", "J")
            return
        term = blocks[-1].term if blocks else 0
        require(block.term >= term, f"{what}: of term {block.term} behind one of term {term}", "J")
        blocks.append(block)
        for row in rows:
            self._commit(what, header.group, header.index, row)

    def obeyed(self, node_id: int, group: int, index: int, command: control.Command) -> None:
        """A node applies the next command of the block that it has just applied."""
        known = self.commands.setdefault((group, index), [])
        place = self._obeyed[node_id, group]
        self._obeyed[node_id, group] = place + 1
        if place < len(known):
            require(
                known[place] == command,
                f"node {node_id}, write group {group}, block {index}: {command}, others {known[place]}",
                "J",
            )
            return
        known.append(command)
        match command:
            case control.LogStartMoved(starts):
                for queue_id, start in starts:
                    self._move(self.queue(queue_id), start)
            case control.RemoteChanged() if self.remote is not None:
                self.remote.changed(group, index, place, command)
            case control.QueuesDeleted(topic_number):
                self.may_delete(topic_number)
                self.deleted_topics.add(topic_number)
                for queue in self.queues.values():
                    if topic_number_of(queue.queue_id) == topic_number and self.group_of(queue.queue_id) == group:
                        queue.deleted = True

    def place(self, node_id: int, group: int) -> int:
        """Which command of its newest block a node has applied last."""
        return self._obeyed[node_id, group] - 1

    def _move(self, queue: QueueHistory, start: int) -> None:
        start = min(start, queue.end)
        if start > queue.log_start and not queue.deleted:
            self.may_move(queue, start)
            queue.log_start = start

    def skipped(self, node_id: int, group: int, index: int) -> None:
        """A node takes a snapshot of everything up to a block."""
        self.note("snapshot", node_id, group, index)
        known = len(self.blocks.get(group, []))
        require(index <= known, f"node {node_id}, group {group}: a snapshot at block {index}, applied are {known}", "J")

    def _commit(self, what: str, group: int, index: int, row: numpy.void) -> None:
        queue = self.queue(int(row["queue_id"]))
        if queue.deleted:
            return
        base_offset, crc = int(row["base_offset"]), int(row["crc"])
        what = f"{what}: queue {queue.queue_id:#x}"
        require(base_offset == queue.end, f"{what}: a batch at offset {base_offset} where {queue.end} is next", "C")
        require(crc in self.sent, f"{what}: a batch at offset {base_offset} that nobody sent", "J")
        count = self.committed[crc] = self.committed.get(crc, 0) + 1
        attempts = self.attempts[crc]
        require(count <= attempts, f"{what}: {count} times what was sent {attempts} times and not refused", "D")
        meant_for = self.meant_for.get(crc, base_offset)
        require(
            base_offset == meant_for,
            f"{what}: a machine's record at offset {base_offset} that was meant for {meant_for}: another has written "
            "since it last knew",
            "O",
        )
        producer = int(row["producer_id"])
        if producer >= 0:
            self._follow(what, queue, producer, row)
        end = base_offset + int(row["last_offset_delta"]) + 1
        epoch, newest = int(row["leader_epoch"]), queue.batches[-1].leader_epoch if queue.batches else 0
        require(epoch >= newest, f"{what}: leader epoch {epoch} behind {newest}", "C")
        require(
            base_offset not in queue.promises or queue.promises[base_offset] == crc,
            f"{what}: another batch than the one acknowledged at {base_offset}",
            "A",
        )
        queue.batches.append(
            Committed(
                base_offset,
                end,
                epoch,
                crc,
                index,
                int(row["length"]),
                int(row["max_timestamp"]),
                bool(int(row["attributes"]) & CONTROL_BIT),
                group,
            )
        )
        for follow in self.followers:
            follow(what, queue, row)
        if (compacted := self.compacted.get(queue.queue_id)) is not None:
            compacted.committed(base_offset, self.sent_whole[crc], group)

    def _follow(self, what: str, queue: QueueHistory, producer: int, row: numpy.void) -> None:
        """Epochs of a producer never go back, and in each its sequence numbers begin at 0. A marker has none."""
        epoch, sequence = int(row["producer_epoch"]), int(row["base_sequence"])
        known, expected = queue.sequences.get(producer, (epoch, 0))
        require(epoch >= known, f"{what}: producer {producer} in epoch {epoch} behind one in {known}", "D")
        expected = expected if epoch == known else 0
        if not int(row["attributes"]) & CONTROL_BIT:
            require(sequence == expected, f"{what}: producer {producer} at sequence {sequence}, not {expected}", "D")
            expected += int(row["record_count"])
        queue.sequences[producer] = epoch, expected

    def _check_bytes(self, what: str, batch: Buffer, crc: int) -> None:
        require(bytes(batch[CHECKED_FROM:]) == self.sent.get(crc), f"{what}: other bytes than were sent", "B")

    # --- from the clients ---------------------------------------------------------------------------------

    def sending(self, batch: bytes) -> int:
        """A batch is about to be sent, perhaps again; its CRC."""
        crc = int.from_bytes(batch[CRC_AT], "big")
        self.sent[crc] = batch[CHECKED_FROM:]
        if self.compacted or self.keeps_whole:
            self.sent_whole[crc] = batch
        self.attempts[crc] = self.attempts.get(crc, 0) + 1
        return crc

    def refused(self, crc: int) -> None:
        """A batch was answered with an error that says that it is not in the log, nor will be."""
        self.note("refused", crc)
        self.attempts[crc] -= 1
        count, attempts = self.committed.get(crc, 0), self.attempts[crc]
        require(
            count <= attempts, f"a refused batch is committed {count} times; it was sent {attempts} times else", "R"
        )

    def has_in_log(self, queue_id: int, crc: int) -> bool:
        """Whether a batch is committed, from whichever time it was sent; of queues that are gone nobody knows."""
        return crc in self.committed or self.queue(queue_id).deleted

    def acknowledged(self, queue_id: int, base_offset: int, crc: int, *, promised: bool) -> None:
        """A batch was answered with OK; `promised`: with acks=all."""
        self.note("ack", queue_id, base_offset, crc, promised)
        if promised:
            queue = self.queue(queue_id)
            what = f"queue {queue_id:#x}: acknowledged at {base_offset}"
            require(queue.promises.setdefault(base_offset, crc) == crc, f"{what}: two different batches", "A")
            if base_offset < queue.end:
                kept = queue.batches[queue.place(base_offset)]
                require(
                    (kept.base_offset, kept.crc) == (base_offset, crc), f"{what}: another one was committed there", "A"
                )
                queue.promised_end = max(queue.promised_end, kept.end)

    def promised_ends(self, group: int) -> int:
        """Of all queues of a group together: it grows with what is acknowledged."""
        return sum(queue.promised_end for queue in self.queues.values() if self.group_of(queue.queue_id) == group)

    def check_current(self, what: str, offset: int, promised_end: int) -> None:
        """Somebody was told that a queue ends at `offset`; when they asked, everything before `promised_end` had been
        acknowledged."""
        require(
            offset >= promised_end,
            f"{what} claims to end at {offset}, acknowledged before the question was everything before {promised_end}",
            "W",
        )

    def check_read(self, what: str, queue_id: int, offset: int, batches: Sequence[Buffer], next_offset: int) -> None:
        """Somebody read this from `offset` on."""
        end = self.check_batches(what, queue_id, offset, batches)
        if batches and not self.queue(queue_id).deleted:
            require(next_offset == end, f"{what}: queue {queue_id:#x} read at {offset}: goes on at {next_offset}", "B")

    def check_batches(self, what: str, queue_id: int, offset: int, batches: Sequence[Buffer]) -> int:
        """Somebody read this from `offset` on; where it ends."""
        if queue_id in self.compacted:
            return self._check_compacted(what, queue_id, offset, batches)
        queue = self.queue(queue_id)
        what = f"{what}: queue {queue_id:#x} read at {offset}"
        if not batches or queue.deleted:
            return offset
        place = queue.place(offset)
        for batch in batches:
            require(place < len(queue.batches), f"{what}: a batch beyond the end {queue.end} of what is committed", "B")
            kept = queue.batches[place]
            stamped = int.from_bytes(batch[:8], "big"), int.from_bytes(batch[12:16], "big")
            require(stamped == (kept.base_offset, kept.leader_epoch), f"{what}: {stamped}, not {kept[:3]}", "B")
            require(
                int.from_bytes(batch[CRC_AT], "big") == kept.crc, f"{what}: another batch at {kept.base_offset}", "B"
            )
            self._check_bytes(what, batch, kept.crc)
            place += 1
        return queue.batches[place - 1].end

    def _check_compacted(self, what: str, queue_id: int, offset: int, batches: Sequence[Buffer]) -> int:
        """As `check_batches`, of a compacted queue: what is not there may be gone."""
        queue, compacted = self.queue(queue_id), self.compacted[queue_id]
        if queue.deleted:
            return offset
        next_offset = offset
        for batch in batches:
            base_offset = int.from_bytes(batch[:8], "big")
            kept = self._batch_at(f"{what}: queue {queue_id:#x} read at {offset}", queue, base_offset)
            there = max(next_offset, queue.log_start)  # somebody may have deleted records meanwhile
            compacted.check_left_out(what, there, base_offset)
            epoch = int.from_bytes(batch[12:16], "big")
            require(epoch == kept.leader_epoch, f"{what}: {base_offset} is of epoch {epoch}, not {kept[:3]}", "B")
            if int.from_bytes(batch[CRC_AT], "big") == kept.crc:
                self._check_bytes(what, batch, kept.crc)
            else:
                compacted.check_rewritten(what, batch, self.sent_whole[kept.crc][IDENTITY], kept.end)
            next_offset = kept.end
        return next_offset

    def _batch_at(self, what: str, queue: QueueHistory, base_offset: int) -> Committed:
        """The batch that begins there."""
        place = queue.place(base_offset)
        require(
            place < len(queue.batches) and queue.batches[place].base_offset == base_offset,
            f"{what}: a batch at {base_offset}, where none was committed",
            "B",
        )
        return queue.batches[place]

    def handed_in(self, what: str, began_ms: int, queues: Sequence[tuple[int, int, int]]) -> None:
        """A pass that began then may be recorded: (queue id, clean end, last offset below it) of each of its queues."""
        for queue_id, end, last in queues:
            require(queue_id in self.compacted, f"{what}: queue {queue_id:#x} is not to be compacted", "L")
            self.compacted[queue_id].handed_in(what, began_ms, end, last)

    # --- at the end ---------------------------------------------------------------------------------------

    def check_promises(self) -> None:
        """Everything is applied that ever will be: is everything there that was acknowledged?"""
        for queue in self.queues.values():
            if topic_number_of(queue.queue_id) in self.forsaken:
                continue
            starts = {kept.base_offset: kept.crc for kept in queue.batches}
            for offset, crc in queue.promises.items():
                kept = starts.get(offset)
                require(kept == crc, f"queue {queue.queue_id:#x}: what was acknowledged at {offset} is lost", "A")
