"""The share groups' windows of one partition of `__share_group_state`, as a machine without I/O.

Events go in, one `Result` comes out of each; see `machines.result` for the order of its effects. State that must
survive a restart changes in `replay` alone. Acquired records are not in the log: a window that is loaded gives them out
again, and counts the deliveries that were noted.

Invariants: an offset belongs to one member at a time; one that was acknowledged, once the log has that, is never given
out again; one that was not is, up to the bound on deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.machines.result import Answer, Moment, Result, Ticket, UnknownRecord
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.lock_deadlines import LockDeadlines
from mainstem.broker.share_groups.records import StateLogRecord, StateRecord, WindowKey
from mainstem.broker.share_groups.share_partition import Acquired, BatchSpan, RecordState, SharePartition
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    ACCEPT,
    GAP,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgementBatch,
)
from mainstem.protocol.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareStateBatch,
    ShareUpdateValue,
)

_STATE_OF = {GAP: RecordState.ARCHIVED, ACCEPT: RecordState.ACKNOWLEDGED, REJECT: RecordState.ARCHIVED}

NO_EPOCH = 0


class NextRead(NamedTuple):
    """The offset from which a member reads next; None: nothing can be given out now."""

    offset: int | None


class LogBounds(NamedTuple):
    """Of the partition that is read, at the time of the request."""

    log_start: int
    end: int
    """Readers see nothing from here on."""


class ReadBatches(NamedTuple):
    """A read of a partition: the offset that was asked for, and the batches found."""

    offset: int
    spans: Sequence[BatchSpan]


class WantedRecords(NamedTuple):
    """How much a member takes."""

    records: int
    mode: int
    """Whether `records` may be exceeded to keep a batch whole."""


class ShareStateMachine:
    """`available` is told of windows that may have more to give out; `config_of` gives the settings of a group that has
    some of its own."""

    def __init__(
        self,
        config: ShareGroupsConfig,
        counts: ShareCounts,
        available: Callable[[WindowKey], None],
        config_of: Callable[[str], ShareGroupsConfig] | None = None,
    ) -> None:
        self.windows: dict[WindowKey, SharePartition] = {}
        self._snapshot_epochs: dict[WindowKey, int] = {}
        self._unknown: dict[bytes, UnknownRecord] = {}
        """Per key the record that a later version wrote, to be handed on."""
        self._config = config
        self._config_of = config_of or (lambda group_id: config)
        self._counts = counts
        self._available = available
        self._deadlines = LockDeadlines()

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, record: StateLogRecord) -> None:
        if isinstance(record, UnknownRecord):
            if record.value is None:
                self._unknown.pop(record.key, None)
            else:
                self._unknown[record.key] = record
            return
        key, value = record.window, record.value
        if value is None:
            if isinstance(record.key, ShareSnapshotKey):
                self.windows.pop(key, None)
                self._snapshot_epochs.pop(key, None)
                self._deadlines.set(key, None)
            return
        window = self.windows.get(key)
        if window is None:
            window = self.windows[key] = SharePartition.beginning_at(value.start_offset)
        elif isinstance(value, ShareSnapshotValue) and value.snapshot_epoch <= self._snapshot_epochs.get(key, -1):
            return
        self._snapshot_epochs[key] = value.snapshot_epoch
        window.apply(value.start_offset, value.state_batches)

    def lose(self) -> None:
        """The next part of the log cannot be read: what was acknowledged in it is given out again."""

    def recovered(self, now: Moment) -> Result:
        return self._finish(Result())

    def sections(self) -> list[WindowKey | bytes]:
        return [*self.windows, *self._unknown]

    def snapshot(self, section: WindowKey | bytes) -> Iterator[StateLogRecord]:
        if isinstance(section, bytes):
            unknown = self._unknown.get(section)
            if unknown is not None:
                yield unknown
            return
        window = self.windows.get(section)
        if window is not None:
            self._snapshot_epochs[section] += 1
            yield self._snapshot_record(section, window)

    def _snapshot_record(self, key: WindowKey, window: SharePartition) -> StateRecord:
        value = ShareSnapshotValue(
            snapshot_epoch=self._snapshot_epochs.get(key, 0),
            state_epoch=NO_EPOCH,
            leader_epoch=NO_EPOCH,
            start_offset=window.start,
            create_timestamp=-1,
            write_timestamp=-1,
            state_batches=window.batches(),
        )
        return StateRecord(key.of_snapshot(), value)

    # --- fetches -------------------------------------------------------------------------------------

    def begin(self, ticket: Ticket, key: WindowKey, bounds: LogBounds, now: Moment) -> Result:
        """Find the offset from which a group reads next. The answer is a `NextRead`, or the `ErrorCode` of a refusal. A
        group that comes to a partition for the first time begins where `auto_offset_reset` says."""
        result = Result()
        window = self.windows.get(key)
        if window is None:
            if len(self.windows) >= self._config.windows_max:
                result.answers.append(Answer(ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return self._finish(result)
            from_start = self._config_of(key.group_id).auto_offset_reset == "earliest"
            window = SharePartition.beginning_at(bounds.log_start if from_start else bounds.end)
            self._write(result, self._snapshot_record(key, window))
            window = self.windows[key]
        elif window.start < bounds.log_start:
            self._update(result, key, window, (), start=bounds.log_start)
        locks_max = self._config_of(key.group_id).record_locks_max
        result.answers.append(Answer(ticket, NextRead(window.next_offset(locks_max))))
        return self._finish(result)

    def acquire(
        self, ticket: Ticket, key: WindowKey, member_id: str, read: ReadBatches, wanted: WantedRecords, now: Moment
    ) -> Result:
        """Give a member what is available of the batches that were read. The answer is a list of `Acquired`."""
        result, window = Result(), self.windows.get(key)
        taken: list[Acquired] = []
        if window is not None:
            own, room, position = self._config_of(key.group_id), wanted.records, read.offset
            for span in read.spans:
                if room <= 0 or position >= window.start + own.record_locks_max:
                    break
                window.skip(position, span.first - 1)
                position = max(position, span.last + 1)
                size = room if wanted.mode == RECORD_LIMIT else max(room, span.last - span.first + 1)
                given = window.acquire(
                    member_id, span, size, now.monotonic_ms + own.lock_duration_ms, own.record_locks_max
                )
                room -= sum(run.last - run.first + 1 for run in given)
                taken += given
            self._counts.acquired += sum(run.last - run.first + 1 for run in taken)
            self._arm(key, window)
        result.answers.append(Answer(ticket, taken))
        return self._finish(result)

    # --- acknowledgements ----------------------------------------------------------------------------

    def acknowledge(
        self,
        ticket: Ticket,
        key: WindowKey,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        now: Moment,
    ) -> Result:
        """A member says what becomes of records that it has. The answer is an `ErrorCode`; with an error nothing of it
        is done."""
        result, window = Result(), self.windows.get(key)
        if window is None:
            result.answers.append(Answer(ticket, ErrorCode.INVALID_RECORD_STATE))
            return self._finish(result)
        parts = list(_parts(batches))
        last_before = -1
        for first, last, _ in parts:
            if first <= last_before or not window.holds(member_id, first, last):
                result.answers.append(Answer(ticket, ErrorCode.INVALID_RECORD_STATE))
                return self._finish(result)
            last_before = last
        changes: list[ShareStateBatch] = []
        for first, last, kind in parts:
            if kind == RENEW:
                window.renew(first, last, now.monotonic_ms + self._config_of(key.group_id).lock_duration_ms)
            elif kind == RELEASE:
                changes += window.given_back(first, last, self._config_of(key.group_id).delivery_count_limit)
            else:
                changes += window.settled(first, last, _STATE_OF[kind])
            self._counts.acknowledged[kind] += last - first + 1
        self._update(result, key, window, changes)
        result.answers.append(Answer(ticket, ErrorCode.NONE))
        return self._finish(result)

    def release(self, ticket: Ticket, keys: Sequence[WindowKey], member_id: str, now: Moment) -> Result:
        """A member reads no more: others get what it has. The answer is how many windows that concerned."""
        result = Result()
        concerned = 0
        for key in keys:
            window = self.windows.get(key)
            if window is None:
                continue
            changes: list[ShareStateBatch] = []
            for run in window.held_by(member_id):
                changes += window.given_back(run.first, run.last, self._config_of(key.group_id).delivery_count_limit)
            self._update(result, key, window, changes)
            concerned += bool(changes)
        result.answers.append(Answer(ticket, concerned))
        return self._finish(result)

    # --- the end of windows --------------------------------------------------------------------------

    def forget(self, ticket: Ticket, of: str | UUID, now: Moment) -> Result:
        """A share group, by its id, or a topic is gone: forget its windows. The answer is how many there were."""
        result = Result()
        gone = [key for key in self.windows if of in (key.group_id, key.topic_id)]
        for key in gone:
            self._write(result, StateRecord(key.of_update(), None))
            self._write(result, StateRecord(key.of_snapshot(), None))
        result.answers.append(Answer(ticket, len(gone)))
        return self._finish(result)

    # --- time ----------------------------------------------------------------------------------------

    def advance(self, now: Moment) -> Result:
        """Others get the records whose locks have run out."""
        result = Result()
        for key in self._deadlines.due(now.monotonic_ms):
            window = self.windows.get(key)
            if window is None:
                continue
            changes: list[ShareStateBatch] = []
            for run in window.overdue(now.monotonic_ms):
                changes += window.given_back(run.first, run.last, self._config_of(key.group_id).delivery_count_limit)
                self._counts.locks_expired += run.last - run.first + 1
            self._update(result, key, window, changes)
        return self._finish(result)

    # --- internals -----------------------------------------------------------------------------------

    def _update(
        self,
        result: Result,
        key: WindowKey,
        window: SharePartition,
        changes: Sequence[ShareStateBatch],
        start: int | None = None,
    ) -> None:
        """Write what has changed, if anything has, and tell those who wait for records."""
        if changes or start is not None:
            value = ShareUpdateValue(
                snapshot_epoch=self._snapshot_epochs.get(key, 0),
                leader_epoch=NO_EPOCH,
                start_offset=window.start_after(changes) if start is None else start,
                state_batches=tuple(changes),
            )
            self._counts.archived += sum(
                batch.last_offset - batch.first_offset + 1
                for batch in changes
                if batch.delivery_state == RecordState.ARCHIVED
            )
            self._write(result, StateRecord(key.of_update(), value))
            self._available(key)
        self._arm(key, window)

    def _write(self, result: Result, record: StateRecord) -> None:
        result.records.append(record)
        self.replay(record)

    def _arm(self, key: WindowKey, window: SharePartition) -> None:
        self._deadlines.set(key, window.next_deadline_ms())

    def _finish(self, result: Result) -> Result:
        result.wake_at_ms = self._deadlines.next_ms()
        return result


def _parts(batches: Sequence[AcknowledgementBatch]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring offsets that become the same: first, last, and what."""
    for batch in batches:
        types = batch.acknowledge_types
        if len(types) == 1:
            yield batch.first_offset, batch.last_offset, types[0]
            continue
        begin = 0
        for index in range(1, len(types) + 1):
            if index == len(types) or types[index] != types[begin]:
                yield batch.first_offset + begin, batch.first_offset + index - 1, types[begin]
                begin = index
