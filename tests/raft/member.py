"""A driver: one member of a group with a core, a disk and an applied state, and nothing that happens by itself."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.raft.disk import Disk, State

from mainstem.raft import (
    KIND_DATA,
    Entry,
    Message,
    RaftConfig,
    RaftCore,
    Ready,
    Snapshot,
)
from mainstem.raft.messages import InstallSnapshot
from mainstem.raft.ready import ReadResult

Send = Callable[[Message, State], None]
"""Takes a message off; with an InstallSnapshot goes the state it names."""


class Member:
    """`send` takes its messages. Its life ends with `crash` and begins again with `start`."""

    def __init__(
        self,
        config: RaftConfig,
        disk: Disk,
        rng: random.Random,
        send: Send,
        core_class: type[RaftCore] = RaftCore,
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.disk = disk
        self.rng = rng
        self._send = send
        self._core_class = core_class
        self.arrived: dict[tuple[int, int], State] = {}
        """The states of snapshots that came in."""
        self.answered: list[tuple[ReadResult, int]] = []
        """Reads and the applied index they were answered at."""
        self.ready: Ready | None = None
        self.start()

    def start(self) -> None:
        image = self.disk.seen
        self.state = image.state
        applied_index = image.snapshot.index if image.snapshot is not None else 0
        applied_index = max(applied_index, image.base_index)
        self.applied_term = image.term(applied_index)
        self.core = self._core_class(
            self.config,
            self.disk,
            self.disk.hard_state,
            image.memberships,
            self.rng,
            applied_index=applied_index,
        )
        self.applied_index = applied_index
        self.ready = None
        self.answered.clear()
        self.arrived.clear()

    def crash(self) -> None:
        self.disk.crash(self.rng)

    # --- the driver loop ---

    def take(self) -> bool:
        """Take a Ready and do all of it but `advance`. Whether there was one."""
        self.ready = ready = self.core.ready()
        if ready is None:
            return False
        if ready.hard_state is not None:
            self.disk.write_hard_state(ready.hard_state)
        if ready.truncate_from:
            self.disk.truncate(ready.truncate_from)
        for entry in ready.entries:
            self.disk.append(entry)
        for message in ready.messages:
            self._send(message, ())
        for transfer in ready.snapshots_to_send:
            self._send(transfer, self.disk.seen.state)
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        for entry in ready.committed:
            self.apply(entry)
        self.answered.extend((result, self.applied_index) for result in ready.reads)
        return True

    def advance(self) -> None:
        ready, self.ready = self.ready, None
        assert ready is not None
        self.core.advance(ready)

    def run(self) -> None:
        """The loop as a driver runs it."""
        if self.ready is not None:
            self.advance()
        while self.take():
            self.advance()

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, f"{entry} applied behind {self.applied_index}"
        self.applied_index = entry.index
        self.applied_term = entry.term
        if entry.kind == KIND_DATA:
            self.state = (*self.state, (entry.index, entry.data))

    def _install(self, snapshot: Snapshot) -> None:
        state = self.arrived.get((snapshot.index, snapshot.term))
        if state is None:
            self.core.snapshot_failed(snapshot)
        else:
            self._installing = state
            self.disk.install(snapshot, state)

    # --- events ---

    def receive(self, message: Message, state: State) -> None:
        if isinstance(message, InstallSnapshot):
            self.arrived[message.snapshot.index, message.snapshot.term] = state
        self.core.step(message)

    def sync(self, count: int | None = None) -> None:
        """The oldest writes to the log become durable (default: all)."""
        for report in self.disk.sync(self.disk.writes_waiting if count is None else count):
            if isinstance(report, Entry):
                self.core.persisted(report.index, report.term)
            else:
                self.state = self.arrived[report.index, report.term]
                self.applied_index, self.applied_term = report.index, report.term
                self.core.snapshot_installed(report)

    def sync_hard_state(self) -> None:
        """The oldest hard state that is not durable becomes so."""
        self.core.hard_state_persisted(self.disk.sync_hard_state())

    def settle(self) -> None:
        """Everything the disk owes, and what follows from it."""
        self.run()
        while self.disk.writes_waiting or self.disk.hard_states_waiting:
            self.sync()
            while self.disk.hard_states_waiting:
                self.sync_hard_state()
            self.run()

    def compact(self, keep: int) -> None:
        """Save a snapshot of the applied state and drop the log before it but for `keep` entries."""
        membership = self.core.membership_at(self.applied_index)
        snapshot = Snapshot(self.applied_index, self.applied_term, membership)
        self.disk.save_snapshot(snapshot, self.state)
        self.disk.compact(max(self.disk.seen.base_index, self.applied_index - keep))
