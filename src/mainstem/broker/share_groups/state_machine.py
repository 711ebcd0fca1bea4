"""The share groups' windows of one partition of `__share_group_state`, as a machine without I/O.

Events go in, one `Result` comes out of each; see `machines.result` for the order of its effects. State that must
survive a restart changes in `replay` alone. Acquired records are not in the log: a window that is loaded gives them out
again, and counts the deliveries that were noted.

Invariants: an offset belongs to one member at a time; one that was acknowledged, once the log has that, is never given
out again; one that was not is, up to the bound on deliveries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.machines.result import Answer, Moment, Result, Ticket
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.share_partition import Acquired, BatchSpan, RecordState
from mainstem.broker.share_groups.window_log import WindowEpochs, WindowLog
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
from mainstem.protocol.messages.share_group_state import ANY_EPOCH, UNINITIALIZED
from mainstem.protocol.messages.share_state_records import ShareStateBatch

_WRITTEN_STATES = frozenset({RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""Acquired records are not in the log: they are available to whoever reads it."""

_STATE_OF = {GAP: RecordState.ARCHIVED, ACCEPT: RecordState.ACKNOWLEDGED, REJECT: RecordState.ARCHIVED}


class NextRead(NamedTuple):
    """The offset from which a member reads next; None: nothing can be given out now."""

    offset: int | None
    here: bool = True
    """Whether this node serves the window, and is told when it may have more to give out."""


class LogBounds(NamedTuple):
    """Of the partition that is read, at the time of the request."""

    log_start: int
    end: int
    """Readers see nothing from here on."""


class ReadBatches(NamedTuple):
    """A read of a partition: the offset that was asked for, the batches found that readers may get, and the offset
    behind all that was looked at."""

    offset: int
    spans: Sequence[BatchSpan]
    end: int


class WantedRecords(NamedTuple):
    """How much a member takes."""

    records: int
    mode: int
    """Whether `records` may be exceeded to keep a batch whole."""


class WindowState(NamedTuple):
    """A window as the log has it; a `start` of -1: the group has yet to begin."""

    state_epoch: int
    leader_epoch: int
    start: int
    batches: Sequence[ShareStateBatch]
    done: int
    """Offsets from `start` on that nobody gets any more."""


class WrittenState(NamedTuple):
    """A window as a broker says that it is; a `start` of -1: it is where it was."""

    state_epoch: int
    leader_epoch: int
    start: int
    batches: Sequence[ShareStateBatch]

    def is_sound(self, end_max: int) -> bool:
        """Whether records can be in these states, none of them at `end_max` or behind it."""
        return all(
            0 <= batch.first_offset <= batch.last_offset < end_max
            and batch.delivery_state in _WRITTEN_STATES
            and batch.delivery_count >= 0
            for batch in self.batches
        )


class ShareStateMachine(WindowLog):
    """The events of readers, of those who look after the state, and of time."""

    # --- fetches -------------------------------------------------------------------------------------

    def begin(self, ticket: Ticket, key: WindowKey, bounds: LogBounds, now: Moment) -> Result:
        """Find the offset from which a group reads next. The answer is a `NextRead`, or the `ErrorCode` of a refusal. A
        group that comes to a partition for the first time begins where `auto_offset_reset` says."""
        result = Result()
        window = self.windows.get(key)
        if window is None or window.start == UNINITIALIZED:
            if window is None and len(self.windows) >= self._config.windows_max:
                result.answers.append(Answer(ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return self._finish(result)
            from_start = self._config_of(key.group_id).auto_offset_reset == "earliest"
            start = bounds.log_start if from_start else bounds.end
            window = self._begin_anew(result, key, start, self._epochs.get(key) or WindowEpochs())
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
        if window is not None and window.start != UNINITIALIZED:
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
            else:
                window.skip(position, min(read.end, window.start + own.record_locks_max) - 1)
            self._counts.of(key.group_id).acquired += sum(run.last - run.first + 1 for run in taken)
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
        is done. Retention may have taken the first records of a batch meanwhile: what it says of the others counts, as
        in Kafka."""
        result, window = Result(), self.windows.get(key)
        if window is None:
            result.answers.append(Answer(ticket, ErrorCode.INVALID_RECORD_STATE))
            return self._finish(result)
        parts = list(_parts(batches, window.start))
        last_before, renewals = -1, self._config_of(key.group_id).renewals
        for first, last, kind in parts:
            is_refused = kind == RENEW and not renewals
            if first <= last_before or is_refused or not window.holds(member_id, first, last):
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
            self._counts.of(key.group_id).acknowledged[kind] += last - first + 1
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
            self._forget(result, key)
        if isinstance(of, str):
            self._counts.forget(of)
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
                self._counts.of(key.group_id).locks_expired += run.last - run.first + 1
            self._update(result, key, window, changes)
        return self._finish(result)

    # --- the state, for those who look after it --------------------------------------------------------

    def keys_of(self, ticket: Ticket, group_id: str, now: Moment) -> Result:
        """The answer is a list of the `WindowKey`s of a share group."""
        result = Result()
        result.answers.append(Answer(ticket, [key for key in self.windows if key.group_id == group_id]))
        return self._finish(result)

    def read(self, ticket: Ticket, keys: Sequence[WindowKey], now: Moment) -> Result:
        """The answer is a list with the `WindowState` of each, None where there is none."""
        result = Result()
        result.answers.append(Answer(ticket, [self._state_of(key) for key in keys]))
        return self._finish(result)

    def has(self, ticket: Ticket, key: WindowKey) -> Result:
        """The answer is whether there is a window."""
        result = Result()
        result.answers.append(Answer(ticket, key in self.windows))
        return self._finish(result)

    def read_to_lead(self, ticket: Ticket, key: WindowKey, leader_epoch: int, now: Moment) -> Result:
        """The same of one window, for a broker that gives its records out from now on: earlier leaders write nothing
        any more. The answer is a `WindowState`, or the `ErrorCode` of a refusal."""
        result, state = Result(), self._state_of(key)
        answer: WindowState | ErrorCode = ErrorCode.INVALID_REQUEST
        if state is not None:
            fenced = ANY_EPOCH < leader_epoch < state.leader_epoch
            answer = ErrorCode.FENCED_LEADER_EPOCH if fenced else state
            if leader_epoch > state.leader_epoch:
                self._write_change(result, key, state.start, (), leader_epoch)
        result.answers.append(Answer(ticket, answer))
        return self._finish(result)

    def initialize(self, ticket: Ticket, key: WindowKey, state_epoch: int, start: int, now: Moment) -> Result:
        """A group begins with a partition at this offset, whatever it knew; without one it begins at its first read
        where `auto_offset_reset` says. The answer is an `ErrorCode`."""
        result, known = Result(), self._epochs.get(key)
        code = ErrorCode.NONE
        if start < UNINITIALIZED:
            code = ErrorCode.INVALID_REQUEST
        elif known is None and len(self.windows) >= self._config.windows_max:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif known is not None and ANY_EPOCH < state_epoch < known.state:
            code = ErrorCode.FENCED_STATE_EPOCH
        else:
            before = known or WindowEpochs()
            epochs = WindowEpochs(state=max(state_epoch, before.state), leader=before.leader)
            self._begin_anew(result, key, start, epochs)
            self._available(key)
        result.answers.append(Answer(ticket, code))
        return self._finish(result)

    def write(self, ticket: Ticket, key: WindowKey, written: WrittenState, now: Moment) -> Result:
        """A broker that gave records out says what became of them. The answer is an `ErrorCode`; with an error nothing
        of it is done."""
        result, window = Result(), self.windows.get(key)
        code = ErrorCode.INVALID_REQUEST
        if window is not None:
            epochs = self._epochs[key]
            start = max(written.start, window.start)
            if ANY_EPOCH < written.leader_epoch < epochs.leader:
                code = ErrorCode.FENCED_LEADER_EPOCH
            elif ANY_EPOCH < written.state_epoch < epochs.state:
                code = ErrorCode.FENCED_STATE_EPOCH
            elif start != UNINITIALIZED and written.is_sound(start + self._config_of(key.group_id).record_locks_max):
                code = ErrorCode.NONE
                self._write_change(result, key, start, written.batches, written.leader_epoch)
                self._arm(key, window)
                self._available(key)
        result.answers.append(Answer(ticket, code))
        return self._finish(result)

    def delete(self, ticket: Ticket, key: WindowKey, now: Moment) -> Result:
        """A group is to know nothing of a partition any more. The answer is an `ErrorCode`."""
        result = Result()
        if key in self.windows:
            self._forget(result, key)
        result.answers.append(Answer(ticket, ErrorCode.NONE))
        return self._finish(result)

    def _state_of(self, key: WindowKey) -> WindowState | None:
        window, epochs = self.windows.get(key), self._epochs.get(key)
        if window is None or epochs is None:
            return None
        return WindowState(epochs.state, epochs.leader, window.start, window.batches(), window.done)


def _parts(batches: Sequence[AcknowledgementBatch], start: int) -> Iterator[tuple[int, int, int]]:
    """Neighbouring offsets that become the same: first, last, and what. The window begins at `start`: of a batch that
    begins before it and reaches it, the offsets before it are left out."""
    for batch in batches:
        types = batch.acknowledge_types
        reaches = batch.first_offset < start <= batch.last_offset
        begin = start - batch.first_offset if reaches else 0
        if len(types) == 1:
            yield batch.first_offset + begin, batch.last_offset, types[0]
            continue
        for index in range(begin + 1, len(types) + 1):
            if index == len(types) or types[index] != types[begin]:
                yield batch.first_offset + begin, batch.first_offset + index - 1, types[begin]
                begin = index
