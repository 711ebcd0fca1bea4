"""The windows of one partition of `__share_group_state` as its log has them: they change in `replay` alone, which takes
each record as it is written, and again when the partition is loaded.

Each window has epochs: that of its state rises when a group begins anew with a partition, that of its leader with the
brokers that give records out. A request that carries an older one comes too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mainstem.broker.machines.result import Moment, Result, UnknownRecord
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.lock_deadlines import LockDeadlines
from mainstem.broker.share_groups.records import StateLogRecord, StateRecord, WindowKey
from mainstem.broker.share_groups.share_partition import RecordState, SharePartition
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.protocol.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareStateBatch,
    ShareUpdateValue,
)


@dataclass(slots=True)
class WindowEpochs:
    snapshot: int = 0
    state: int = 0
    leader: int = 0


class WindowLog:
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
        self._epochs: dict[WindowKey, WindowEpochs] = {}
        self._unknown: dict[bytes, UnknownRecord] = {}
        """Per key the record that a later version wrote, to be handed on."""
        self._config = config
        self._config_of = config_of or (lambda group_id: config)
        self._counts = counts
        self._available = available
        self._deadlines = LockDeadlines()

    # --- machines.runtime.Machine --------------------------------------------------------------------

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
                self._epochs.pop(key, None)
                self._deadlines.set(key, None)
            return
        window, epochs = self.windows.get(key), self._epochs.get(key)
        if window is None or epochs is None:
            window = self.windows[key] = SharePartition.beginning_at(value.start_offset)
            epochs = self._epochs[key] = WindowEpochs()
        elif isinstance(value, ShareSnapshotValue) and value.snapshot_epoch <= epochs.snapshot:
            return
        epochs.snapshot = value.snapshot_epoch
        epochs.leader = max(epochs.leader, value.leader_epoch)
        if isinstance(value, ShareSnapshotValue):
            epochs.state = max(epochs.state, value.state_epoch)
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
            self._epochs[section].snapshot += 1
            yield _snapshot_record(section, window, self._epochs[section])

    # --- changes -------------------------------------------------------------------------------------

    def _begin_anew(self, result: Result, key: WindowKey, start: int, epochs: WindowEpochs) -> SharePartition:
        """A window begins, in place of one that there was."""
        if key in self.windows:
            self._forget(result, key)
        self._write(result, _snapshot_record(key, SharePartition.beginning_at(start), epochs))
        return self.windows[key]

    def _forget(self, result: Result, key: WindowKey) -> None:
        self._write(result, StateRecord(key.of_update(), None))
        self._write(result, StateRecord(key.of_snapshot(), None))

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
            self._counts.of(key.group_id).archived += sum(
                batch.last_offset - batch.first_offset + 1
                for batch in changes
                if batch.delivery_state == RecordState.ARCHIVED
            )
            self._write_change(result, key, window.start_after(changes) if start is None else start, changes)
            self._available(key)
        self._arm(key, window)

    def _write_change(
        self, result: Result, key: WindowKey, start: int, changes: Sequence[ShareStateBatch], leader_epoch: int = 0
    ) -> None:
        epochs = self._epochs[key]
        value = ShareUpdateValue(
            snapshot_epoch=epochs.snapshot,
            leader_epoch=max(epochs.leader, leader_epoch),
            start_offset=start,
            state_batches=tuple(changes),
        )
        self._write(result, StateRecord(key.of_update(), value))

    def _write(self, result: Result, record: StateRecord) -> None:
        result.records.append(record)
        self.replay(record)

    def _arm(self, key: WindowKey, window: SharePartition) -> None:
        self._deadlines.set(key, window.next_deadline_ms())

    def _finish(self, result: Result) -> Result:
        result.wake_at_ms = self._deadlines.next_ms()
        return result


def _snapshot_record(key: WindowKey, window: SharePartition, epochs: WindowEpochs) -> StateRecord:
    value = ShareSnapshotValue(
        snapshot_epoch=epochs.snapshot,
        state_epoch=epochs.state,
        leader_epoch=epochs.leader,
        start_offset=window.start,
        create_timestamp=-1,
        write_timestamp=-1,
        state_batches=window.batches(),
    )
    return StateRecord(key.of_snapshot(), value)
