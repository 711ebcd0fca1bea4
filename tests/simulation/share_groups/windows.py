"""The windows of share groups, as the logs of `__share_group_state` have them (Q).

The observer decodes each batch that is committed to one of these logs, offset by offset, with no code of the window
that it checks. In the log

- a group has one window over a partition, which nobody forgets while there is the topic;
- an offset is acknowledged, or archived, because a member said so, because it was given out as often as it may be, or
  because readers of the group do not see it; and then it stays so;
- the number of its deliveries never goes back;
- the window's start passes no offset that may still be given out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
from tests.simulation.cluster.history import History, QueueHistory
from tests.simulation.oracle import require
from tests.simulation.transactions.atomicity import Atomicity
from tests.simulation.whole.ledger import Ledger

from mainstem.broker.share_groups.records import ShareStateCodec, StateRecord, WindowKey
from mainstem.broker.share_groups.served_states import STATE_TOPIC
from mainstem.model import topic_number_of
from mainstem.protocol.messages.share_state_records import ShareSnapshotValue, ShareStateBatch
from mainstem.protocol.records import StoredBatch, read_records

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
"""Kafka's numbers."""
FINAL = {ACKNOWLEDGED, ARCHIVED}
NAMES = {AVAILABLE: "available", ACQUIRED: "acquired", ACKNOWLEDGED: "acknowledged", ARCHIVED: "archived"}


class Standing(NamedTuple):
    """Of an offset, as the log has it."""

    state: int = AVAILABLE
    deliveries: int = 0

    def __str__(self) -> str:
        return f"{NAMES[self.state]}, given out {self.deliveries} times"


UNTOUCHED = Standing()


@dataclass
class LoggedWindow:
    """Of a group over a partition. Offsets before `start` are done."""

    log: int
    """The queue that has it."""
    start: int
    offsets: dict[int, Standing] = field(default_factory=dict)

    def at(self, offset: int) -> Standing:
        return self.offsets.get(offset, UNTOUCHED)

    def is_done(self, offset: int) -> bool:
        return offset < self.start or self.at(offset).state in FINAL


class ShareLogs:
    """Raises `Violation`, of Q, where a log says what must not be."""

    def __init__(self, history: History, ledger: Ledger, deliveries_max: int, *, committed: bool) -> None:
        """`committed`: groups get committed records alone."""
        self.windows: dict[WindowKey, LoggedWindow] = {}
        self.accepted: dict[WindowKey, set[int]] = {}
        """Offsets that some member has asked to be acknowledged…"""
        self.rejected: dict[WindowKey, set[int]] = {}
        """…or archived."""
        self.atomicity: Atomicity | None = None
        self._history = history
        self._ledger = ledger
        self._deliveries_max = deliveries_max
        self._committed = committed
        self._codec = ShareStateCodec()
        history.keeps_whole = True
        history.followers.append(self.logged)

    # --- what readers see ---------------------------------------------------------------------------------

    def queue_of(self, key: WindowKey) -> QueueHistory:
        return self._history.queue(self._ledger.fates[key.topic_id].topic.queue_id(key.partition))

    def is_wanted(self, key: WindowKey) -> bool:
        return not self._ledger.fates[key.topic_id].unwanted

    def is_seen(self, queue: QueueHistory, offset: int) -> bool:
        """Whether readers of a group get the record at this offset, once it is there."""
        if offset < queue.log_start:
            return False
        if not self._committed:
            return True
        kept = queue.batches[queue.place(offset)]
        if kept.is_marker:
            return False
        of_queue = self.atomicity.queue(queue.queue_id) if self.atomicity is not None else None
        transaction = of_queue.batches.get(kept.base_offset) if of_queue is not None else None
        return transaction is None or transaction.committed is not False

    def unfinished(self, key: WindowKey) -> list[int]:
        """Offsets that somebody is yet to get."""
        queue, window = self.queue_of(key), self.windows.get(key)
        start = queue.log_start if window is None else max(queue.log_start, window.start)
        return [
            offset
            for offset in range(start, queue.end)
            if self.is_seen(queue, offset) and (window is None or not window.is_done(offset))
        ]

    # --- the logs -----------------------------------------------------------------------------------------

    def logged(self, what: str, queue: QueueHistory, row: numpy.void) -> None:
        """The next row of a queue's log."""
        fate = self._ledger.by_number.get(topic_number_of(queue.queue_id))
        if fate is None or fate.topic.name != STATE_TOPIC:
            return
        batch = StoredBatch.parse(self._history.sent_whole[int(row["crc"])])
        for record in read_records(batch):
            decoded = self._codec.decode(record)
            if isinstance(decoded, StateRecord):
                self._changed(f"{what}: {_name(decoded.window)}", queue.queue_id, decoded)

    def _changed(self, what: str, log: int, record: StateRecord) -> None:
        key, value = record.window, record.value
        if not self.is_wanted(key):
            self.windows.pop(key, None)
            return
        window = self.windows.get(key)
        require(value is not None, f"{what}: the window is forgotten", "Q")
        assert value is not None
        if window is None:
            require(isinstance(value, ShareSnapshotValue), f"{what}: a change of a window that nobody began", "Q")
            end = self.queue_of(key).end
            require(0 <= value.start_offset <= end, f"{what}: begins at {value.start_offset} of {end}", "Q")
            window = self.windows[key] = LoggedWindow(log, value.start_offset)
        require(window.log == log, f"{what}: a second window, in {log:#x}; the first is in {window.log:#x}", "Q")
        for batch in value.state_batches:
            for offset in range(max(batch.first_offset, window.start), batch.last_offset + 1):
                self._offset_changed(what, key, window, offset, batch)
        self._move_start(what, key, window, value.start_offset)

    def _offset_changed(
        self, what: str, key: WindowKey, window: LoggedWindow, offset: int, batch: ShareStateBatch
    ) -> None:
        before, now = window.at(offset), Standing(batch.delivery_state, batch.delivery_count)
        what = f"{what}: offset {offset}"
        require(
            before.state not in FINAL or now.state == before.state,
            f"{what}: an acknowledgement is forgotten: it was {before}, and is {now}",
            "Q",
        )
        if before.state not in FINAL:
            require(
                now.deliveries >= before.deliveries, f"{what} was {before}: its deliveries are {now.deliveries}", "Q"
            )
        if now.state == ACKNOWLEDGED:
            require(offset in self.accepted.get(key, ()), f"{what} is acknowledged: no member said so", "Q")
        elif now.state == ARCHIVED:
            require(
                offset in self.rejected.get(key, ())
                or now.deliveries >= self._deliveries_max
                or not self.is_seen(self.queue_of(key), offset),
                f"{what} is archived after {now.deliveries} deliveries of {self._deliveries_max}: no member said so",
                "Q",
            )
        window.offsets[offset] = now

    def _move_start(self, what: str, key: WindowKey, window: LoggedWindow, start: int) -> None:
        queue = self.queue_of(key)
        require(start >= window.start, f"{what}: its start goes back from {window.start} to {start}", "Q")
        for offset in range(window.start, start):
            require(
                window.at(offset).state in FINAL or not self.is_seen(queue, offset),
                f"{what}: its start goes to {start}, past offset {offset}, which is {window.at(offset)}",
                "Q",
            )
            window.offsets.pop(offset, None)
        window.start = start


def _name(key: WindowKey) -> str:
    return f"share group {key.group_id} over partition {key.partition} of {key.topic_id}"
