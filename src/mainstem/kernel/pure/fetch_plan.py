"""A fetch plan holds the partitions a reader asks for, and the outcome of each in one round of reading.

A plan is filled by the scan of a request. A session keeps its plan and changes it by the plans of later requests; then
it also knows the last answer to the reader, so that an incremental answer names only changes.

A round goes through the partitions in order: `begin` settles what is wrong with the request, `read_cached` answers
from memory up to the first partition it cannot answer, which is then `pending` and answered by `put`, and so on.
Each read may take what the ones before left of the round's bytes; only the first batch of all comes back whole
whatever its size. `response` makes the frame for the wire and lets go of the batches.

Pure-Python twin of the compiled plan. The plan never reads into batches: they are stretches of bytes of other owners,
and the plan keeps them alive until it has answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from mainstem.kernel.batch_header import BASE_OFFSET, HEADER_BYTES, LENGTH, LENGTH_AT, LENGTH_EXCLUDES
from mainstem.kernel.layout import COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, FollowedLog, FollowersRead, Verdict
from mainstem.kernel.pure.fetch_response import write_fetch_response, write_fetch_topics
from mainstem.kernel.pure.group_log import WriteGroupLog
from mainstem.kernel.pure.plan_row import FetchKey, PlanRow, PlanTopic
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.kernel.pure.recent_index import RecentIndex
from mainstem.kernel.pure.scattered_bytes import ScatteredBytes
from mainstem.model import SLOTS_OF_ALL, Buffer, Outcome, QueueRead, QueueSlice, WantedReads, queue_id_of, slot_of

VERDICT_OF_OUTCOME: dict[Outcome, Verdict] = {
    Outcome.OK: Verdict.OK,
    Outcome.UNKNOWN_QUEUE: Verdict.UNKNOWN_QUEUE,
    Outcome.FENCED: Verdict.FENCED,
    Outcome.NOT_LEADER: Verdict.NOT_LEADER,
    Outcome.OFFSET_OUT_OF_RANGE: Verdict.OFFSET_OUT_OF_RANGE,
    Outcome.STORAGE_BUSY: Verdict.STORAGE_BUSY,
    Outcome.STORAGE_FAILED: Verdict.STORAGE_FAILED,
}


class PlannedTopic:
    """The facts about a topic that the broker gives a plan: its `number` and how many `partitions` it has, or the
    verdict on all of its partitions; and whether its readers are `spread` over replicas."""

    __slots__ = ("number", "partitions", "refusal", "spread")

    def __init__(self, number: int, partitions: int, refusal: int = Verdict.OK, spread: bool = False) -> None:
        self.number = number
        self.partitions = partitions
        self.refusal = Verdict(refusal)
        self.spread = spread


class EpochCheck(NamedTuple):
    """A partition whose reader says which leader epoch it read last. `row` is its place in the plan."""

    row: int
    queue_id: int
    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int


class PlannedPartition(NamedTuple):
    """One partition of a plan, for tests and logs."""

    key: FetchKey
    partition: int
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int
    last_fetched_epoch: int
    settled: bool
    verdict: int
    queue_id: int
    """0 unless the topic and the partition are known."""
    high_watermark: int
    log_start: int
    size: int
    """Bytes of batches found in this round."""
    diverging: tuple[int, int] | None


class FetchPlan:
    """Made by `scan_fetch`, with the partitions of the request in their order."""

    def __init__(self) -> None:
        self._rows: list[PlanRow] = []
        self._topics: list[PlanTopic] = []
        self._index: dict[tuple[FetchKey, int], PlanRow] | None = None
        """The rows of a session, in their order."""
        self._cursor = 0
        self._bytes_max = 0
        self.released = True
        self.round = 0
        """How many rounds have begun. Two requests of a session may overlap: the later one takes the plan over."""
        self.bytes = 0
        """Bytes found in this round, by the plans before included."""
        self.final = False
        """Waiting cannot make the answer better: something is wrong, more is there than the limits let through, or
        there is nothing to wait for."""
        self.wanted_bytes = 0
        """Most bytes that the partitions' own limits let through. At least 0."""
        self.asks_epochs = False
        """True when a partition names the leader epoch its reader read last: see `epoch_checks`."""
        self.read_committed = False
        """Whether the reader gets what is before the last stable offset alone."""
        self.from_followers: int = FollowersRead.NEVER
        """Of which topics the reader may be served from the replicas of write groups that other nodes lead."""
        self.reader = 0
        """The connection of the reader, by which its next requests are known; 0: it has none."""
        self.nearer: dict[int, int] | None = None
        """Write group → the node that the reader is sent to for those of its queues that are led here."""
        self.share: dict[int, int] | None = None
        """The same for queues of topics whose readers are spread."""
        self.share_to = -1
        """The broker that the reader is sent to for these, where brokers hold nothing; -1: none."""
        self.for_history: dict[int, int] | None = None
        """The same for reads that memory alone cannot answer."""
        self.has_spread = False
        """Whether the readers of a topic of this round are spread."""

    def __len__(self) -> int:
        return len(self._rows)

    # --- for the scan -----------------------------------------------------------------------------------

    def add_topic(self, key: FetchKey) -> None:
        """Begin a topic: the partitions added next belong to it."""
        self._topics.append(PlanTopic(key))

    def add_partition(self, partition: int, offset: int, bytes_max: int, leader_epoch: int, fetched_epoch: int) -> None:
        self._add(PlanRow(self._topics[-1], partition, offset, max(0, bytes_max), leader_epoch, fetched_epoch))

    def _add(self, row: PlanRow) -> None:
        self._rows.append(row)
        self.wanted_bytes += row.bytes_max
        self.asks_epochs = self.asks_epochs or row.last_fetched_epoch >= 0

    # --- a round ----------------------------------------------------------------------------------------

    @property
    def queue_id_max(self) -> int:
        """The largest of the ids of the queues that are asked for in this round."""
        return max((row.queue_id for row in self._rows), default=0)

    @property
    def topics_named(self) -> int:
        """Topics that were asked for, those without partitions included."""
        return len(self._topics if self._index is None else self.topic_keys())

    def topic_keys(self) -> list[FetchKey]:
        """Keys of the topics that `begin` may ask about, perhaps more than once."""
        return list(dict.fromkeys(row.topic.key for row in self._rows))

    def begin(self, resolve: Callable[[FetchKey], PlannedTopic], bytes_max: int, found_before: int = 0) -> None:
        """Start a round of at most about `bytes_max` bytes, of which other plans of the same request have found
        `found_before`. `resolve` is asked once per topic."""
        self.round += 1
        self._cursor = 0
        self._bytes_max = bytes_max
        self.bytes = found_before
        self.final = not self._rows
        self.released = False
        self.has_spread = False
        resolved: dict[int, PlannedTopic] = {}
        for row in self._rows:
            facts = resolved.get(id(row.topic))
            if facts is None:
                facts = resolved[id(row.topic)] = resolve(row.topic.key)
                row.topic.spread = facts.spread
                self.has_spread = self.has_spread or facts.spread
            verdict = facts.refusal
            row.queue_id = 0
            if verdict == Verdict.OK:
                if 0 <= row.partition < facts.partitions:
                    row.queue_id = queue_id_of(facts.number, row.partition)
                else:
                    verdict = Verdict.UNKNOWN_PARTITION
            row.reset(verdict)
            self.final = self.final or row.settled

    def widen(self, bytes_max: int) -> None:
        """Let the round go on to about `bytes_max` bytes; what is settled stays as it is."""
        self._bytes_max = bytes_max

    @property
    def settled(self) -> bool:
        """Whether no partition is pending in this round."""
        return self._next() is None

    def partitions(self) -> list[PlannedPartition]:
        """All partitions, in order."""
        return [
            PlannedPartition(
                row.topic.key, row.partition, row.fetch_offset, row.bytes_max, row.current_leader_epoch,
                row.last_fetched_epoch, row.settled, row.verdict, row.queue_id, row.high_watermark, row.log_start,
                row.size, row.diverging,
            )
            for row in self._rows
        ]  # fmt: skip

    def epoch_checks(self, after: int = -1, most: int = 2**31 - 1) -> list[EpochCheck]:
        """The partitions whose readers' histories are to be compared with the queues' before they are read, `most` of
        them, from behind the row `after` on."""
        if not -1 <= after < max(len(self._rows), 1):
            raise IndexError(f"no partition {after}")
        checks = (
            EpochCheck(place, row.queue_id, row.fetch_offset, row.current_leader_epoch, row.last_fetched_epoch)
            for place, row in enumerate(islice(self._rows, after + 1, None), after + 1)
            if row.last_fetched_epoch >= 0 and not row.settled
        )
        return list(islice(checks, most))

    def diverge(self, row: int, epoch: int, end_offset: int) -> None:
        """Settle a partition with the place where its reader's history left the queue's."""
        found = self._rows[row]
        found.settled = self.final = True
        found.diverging = (epoch, end_offset)

    def fail(self, row: int) -> None:
        """Settle a partition whose data could not be read."""
        self._rows[row].reset(Verdict.STORAGE_FAILED)
        self._refuse(self._rows[row], Verdict.STORAGE_FAILED)

    def _refuse(self, row: PlanRow, verdict: int) -> None:
        row.settled = self.final = True
        row.verdict = verdict

    @property
    def whole_first(self) -> bool:
        """Whether no batch was found yet, so that the next comes back whole, whatever its size."""
        return self.bytes == 0

    def _next(self) -> PlanRow | None:
        rows = self._rows
        while self._cursor < len(rows):
            if not rows[self._cursor].settled:
                return rows[self._cursor]
            self._cursor += 1
        return None

    def pending(self) -> QueueRead | None:
        """The next partition to be read; its `bytes_max` is what the round still has for it. None: all are settled."""
        row = self._next()
        if row is None:
            return None
        return QueueRead(row.queue_id, row.fetch_offset, self.budget(row))

    def wanted(self, reads_max: int, bytes_max: int) -> WantedReads:
        """The next partitions to be read, `reads_max` at most, and what the round still has for all of them: of its
        own bytes and of `bytes_max`, which counts from the round's beginning."""
        left = max(0, min(self._bytes_max, bytes_max) - self.bytes)
        self._next()
        pending = (row for row in islice(self._rows, self._cursor, None) if not row.settled)
        reads = tuple(
            QueueRead(row.queue_id, row.fetch_offset, min(row.bytes_max, left)) for row in islice(pending, reads_max)
        )
        return WantedReads(reads, left, self.whole_first)

    def budget(self, row: PlanRow, reserved: int = 0) -> int:
        """Bytes the round still has for a partition when `reserved` bytes are promised to others."""
        return max(0, min(row.bytes_max, self._bytes_max - self.bytes - reserved))

    @property
    def is_spread(self) -> bool:
        """Whether the readers of the pending partition's topic are spread."""
        row = self._next()
        return row is not None and row.topic.spread

    def put(self, found: QueueSlice, sent_to: int = -1) -> None:
        """Settle the pending partition with the batches of a read; or, with the node that its reader is sent to, with
        the offsets alone."""
        row = self._next()
        if row is None:
            raise ValueError("nothing is pending")
        offsets = found.offsets
        verdict = VERDICT_OF_OUTCOME[found.outcome]
        if offsets.leader_epoch >= 0 and row.current_leader_epoch != -1:
            verdict = _epoch_verdict(row.current_leader_epoch, offsets.leader_epoch) or verdict
        if verdict != Verdict.OK:
            self._refuse(row, verdict)
            return
        ends = offsets.high_watermark, offsets.log_start, offsets.last_stable
        if sent_to >= 0:
            self._send(row, ends, sent_to)
        else:
            self.found(row, ends, found.batches, found.next_offset)

    def found(self, row: PlanRow, ends: tuple[int, int, int], records: Sequence[Buffer], next_offset: int) -> None:
        """Settle a partition with batches that end before `next_offset`. `ends`: the queue's high watermark, log start
        and last stable offset."""
        row.settled = True
        row.high_watermark, row.log_start, row.last_stable = ends
        end = row.high_watermark
        if self.read_committed and row.last_stable < end:
            end = row.last_stable
            if next_offset > end:
                # a log start in the middle of a batch holds up the end: the batch goes on behind it
                records = _before(end, records) if row.fetch_offset < end else ()
                next_offset = max(row.fetch_offset, end)
        row.next_offset = next_offset
        row.records = records
        row.size = sum(map(len, records))
        self.bytes += row.size
        if next_offset < end:  # what comes while waiting would not get through either
            self.final = True

    def end_for(self, table: QueueTable, slot: int) -> int:
        """The end of what the reader gets of a queue."""
        return table.last_stable(slot) if self.read_committed else table.get(slot, COMMITTED_END)

    def stable_reads(self) -> list[tuple[int, int, int, int]]:
        """(row, queue id, first offset, offset behind the last) of each partition of which batches were found."""
        return [
            (place, row.queue_id, row.fetch_offset, row.next_offset)
            for place, row in enumerate(self._rows)
            if row.verdict == Verdict.OK and row.size > 0
        ]

    def tell_aborted(self, row: int, transactions: Sequence[tuple[int, int]]) -> None:
        """Have the reader of a partition told of aborted transactions, as (producer id, first offset)."""
        if not self.read_committed:
            raise ValueError("the reader wants all, and is told of no aborted transaction")
        self._rows[row].aborted = transactions

    def read_cached(
        self, table: QueueTable, index: RecentIndex, logs: Sequence[WriteGroupLog | FollowedLog | None], slots: Buffer
    ) -> int:
        """Settle partitions, in order, up to the first that memory alone cannot answer. `slots` has the write group of
        each slot of all classes as u16; `logs` the log of each group, None where another node leads it and its replica
        here, if there is one, is not to be read. Returns how many partitions were answered with batches."""
        groups = groups_of_slots(slots)
        served = 0
        while (row := self._next()) is not None:
            answered = self.answer_from_memory(row, table, index, logs, groups, 0)
            if answered is None:
                break
            served += answered
        return served

    def give_up_ahead(self) -> None:
        """Refuse the partitions whose readers are beyond what this follower has applied, now that they have waited."""
        for row in self._rows:
            if row.ahead and row.verdict == Verdict.OK:
                row.high_watermark = row.log_start = row.last_stable = -1
                self._refuse(row, Verdict.OFFSET_NOT_AVAILABLE)

    def unsettled(self) -> list[PlanRow]:
        """The pending partition and those behind it."""
        self._next()
        return [row for row in self._rows[self._cursor :] if not row.settled]

    def answer_from_memory(
        self,
        row: PlanRow,
        table: QueueTable,
        index: RecentIndex,
        logs: Sequence[WriteGroupLog | FollowedLog | None],
        groups: Sequence[int],
        reserved: int,
    ) -> bool | None:
        """Settle a partition, when so many bytes of the round are promised to others; None when memory alone cannot.
        Returns whether there were batches."""
        group = groups[slot_of(row.queue_id)]
        log = logs[group]
        if log is None:  # first of all: a replica that is behind lacks queues that its leader has
            self._refuse(row, Verdict.NOT_LEADER)
            return False
        followed = isinstance(log, FollowedLog)
        slot = table.find(row.queue_id)
        unknown = Verdict.NOT_LEADER if followed else Verdict.UNKNOWN_QUEUE
        if slot == NO_SLOT or (followed and self.from_followers == FollowersRead.SPREAD and not row.topic.spread):
            self._refuse(row, unknown)
            return False
        verdict = _epoch_verdict(row.current_leader_epoch, log.term)
        log_start, end = table.get(slot, LOG_START), table.get(slot, COMMITTED_END)
        ends = end, log_start, table.last_stable(slot)
        if followed and verdict == Verdict.OK and row.fetch_offset > end:
            row.ahead = True
        elif verdict == Verdict.OK and not log_start <= row.fetch_offset <= table.get(slot, NEXT_OFFSET):
            verdict = Verdict.OFFSET_OUT_OF_RANGE
        if verdict != Verdict.OK:
            self._refuse(row, verdict)
            return False
        if not followed and (
            self._sent(row, ends, group, self.nearer) or (row.topic.spread and self._sent(row, ends, group, self.share))
        ):
            return False
        budget = self.budget(row, reserved)
        whole_first = not self.bytes and not reserved
        if row.fetch_offset >= self.end_for(table, slot) or (budget == 0 and not whole_first):
            self.found(row, ends, (), row.fetch_offset)
            return False
        found = index.read(slot, row.fetch_offset, budget, whole_first)
        if found is None:
            return False if not followed and self._sent(row, ends, group, self.for_history) else None
        records, next_offset = found
        self.found(row, ends, records, next_offset)
        return row.size > 0

    def _sent(self, row: PlanRow, ends: tuple[int, int, int], group: int, nodes: Mapping[int, int] | None) -> bool:
        """Settle a partition by sending its reader to the node that is named for its write group, if one is."""
        node = -1 if nodes is None else nodes.get(group, -1)
        if node < 0:
            return False
        self._send(row, ends, node)
        return True

    def _send(self, row: PlanRow, ends: tuple[int, int, int], node: int) -> None:
        self.found(row, ends, (), row.fetch_offset)
        row.nearer = node
        self.final = True

    def ends(self) -> dict[int, int]:
        """The high watermark of each queue that was read, by queue id."""
        return {row.queue_id: row.high_watermark for row in self._rows if row.high_watermark >= 0}

    def release(self) -> None:
        """Let go of the batches of this round."""
        self.released = True
        for row in self._rows:
            row.records = ()

    # --- the answer -------------------------------------------------------------------------------------

    def errors(self, codes: Sequence[int]) -> dict[int, int]:
        """How often each error code occurs in this round, by `codes` of verdicts, in the order in which they occur
        first."""
        return dict(Counter(codes[row.verdict] for row in self._rows if row.verdict != Verdict.OK))

    def response(
        self,
        version: int,
        correlation_id: int,
        codes: Sequence[int],
        *,
        session_id: int = 0,
        read_committed: bool = False,
        incremental: bool = False,
        throttle_ms: int = 0,
    ) -> list[Buffer] | list[ScatteredBytes]:
        """The whole frame, length included, as buffers to be written in order, or as one `ScatteredBytes` where there
        would be many; large stretches of batches are not copied. `codes` has the error code of each verdict.
        `incremental` leaves out what is no news to the session. The plan of a session notes what it tells, and those it
        serves go to the end of its order. `throttle_ms` is the time for which the client is throttled."""
        if self.released:
            raise ValueError("the batches of this round are gone")
        rows = self._rows
        if self._index is not None:
            if incremental:
                rows = [row for row in rows if row.is_news]
            for row in self._rows:
                row.tell()
        buffers = write_fetch_response(version, correlation_id, session_id, rows, codes, read_committed, throttle_ms)
        if self._index is not None:
            for row in rows:
                if row.size:
                    key = row.topic.key, row.partition
                    self._index[key] = self._index.pop(key)
            self._rows = list(self._index.values())
        self.release()
        return buffers

    def section(self, version: int, codes: Sequence[int], *, read_committed: bool = False) -> tuple[int, list[Buffer]]:
        """How many topics of a response these partitions make, and the topics as buffers, where the partitions are some
        of a request's; the plan is no session's."""
        if self.released:
            raise ValueError("the batches of this round are gone")
        try:
            return write_fetch_topics(version, self._rows, codes, read_committed)
        finally:
            self.release()

    # --- sessions ---------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Become the plan of a session: each partition once, the newest wish counts."""
        if self._index is not None:
            raise ValueError("the plan is a session's already")
        self.release()
        self._index = {}
        rows, self._rows, self._topics = self._rows, [], []
        self._follow(rows)

    def additions(self, asked: FetchPlan) -> int:
        """How many partitions of another plan are not in this one (each mention counts)."""
        index = self._session()
        return sum((row.topic.key, row.partition) not in index for row in asked._rows)

    def update(self, asked: FetchPlan, forgotten: Sequence[tuple[FetchKey, Sequence[int]]]) -> None:
        """Take over what a later request of the session asks for, then leave out what it forgets."""
        index = self._session()
        if asked is self:
            raise ValueError("the plan is no session's")
        self.release()
        self.round += 1  # whoever is in the middle of one finds another plan
        self._follow(asked._rows)
        for key, partitions in forgotten:
            for partition in partitions:
                index.pop((key, partition), None)
        self._count()

    def _session(self) -> dict[tuple[FetchKey, int], PlanRow]:
        if self._index is None:
            raise ValueError("the plan is no session's")
        return self._index

    def _follow(self, asked: Sequence[PlanRow]) -> None:
        index = self._session()
        topics = {key: row.topic for (key, _), row in index.items()}
        for row in asked:
            row.topic = topics.setdefault(row.topic.key, row.topic)
            known = index.setdefault((row.topic.key, row.partition), row)
            if known is not row:
                known.ask(row.fetch_offset, row.bytes_max, row.current_leader_epoch, row.last_fetched_epoch)
        self._count()

    def _count(self) -> None:
        self._rows, self.wanted_bytes, self.asks_epochs = [], 0, False
        for row in self._session().values():
            self._add(row)


def _before(end: int, records: Sequence[Buffer]) -> list[Buffer]:
    """Batches, some of which may lie side by side, up to the first that begins at `end` or behind."""
    kept: list[Buffer] = []
    for stretch in records:
        view, position = memoryview(stretch).cast("B"), 0
        while position + HEADER_BYTES <= len(view):
            (base_offset,) = BASE_OFFSET.unpack_from(view, position)
            if base_offset >= end:
                return [*kept, view[:position]] if position else kept
            (length,) = LENGTH.unpack_from(view, position + LENGTH_AT)
            if length + LENGTH_EXCLUDES < HEADER_BYTES:
                break
            position += length + LENGTH_EXCLUDES
        kept.append(stretch)
    return kept


def groups_of_slots(slots: Buffer) -> memoryview:
    """The write group of each slot. ValueError unless there is one for each."""
    groups = memoryview(slots).cast("B").cast("H")
    if len(groups) != SLOTS_OF_ALL:
        raise ValueError(f"groups of {2 * len(groups)} bytes")
    return groups


def _epoch_verdict(known_to_reader: int, present: int) -> Verdict:
    if known_to_reader in (-1, present):
        return Verdict.OK
    return Verdict.FENCED_LEADER_EPOCH if known_to_reader < present else Verdict.UNKNOWN_LEADER_EPOCH
