"""A group whose every message is seen: for transcripts of single rules.

Nothing is random but the election timeouts, and those only matter if a test ticks on until somebody stands. Disks
sync at once unless a member is `slow`; messages wait in `wire` until they are delivered, links can be cut one way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.raft.disk import Disk, State
from tests.raft.member import Member

from mainstem.raft import Entry, HardState, Membership, Message, RaftConfig, RaftCore, Role
from mainstem.raft.entry import KIND_DATA
from mainstem.raft.messages import TimeoutNow


class Cluster:
    def __init__(
        self,
        voters: Iterable[int] = (1, 2, 3),
        learners: Iterable[int] = (),
        *,
        logs: dict[int, list[int]] | None = None,
        term: int = 0,
        core_class: type[RaftCore] = RaftCore,
        **config: Any,
    ) -> None:
        """`logs`: the terms of the entries a member begins with, all durable; `term`: what all begin in, at least
        that of their last entry."""
        self.wire: list[tuple[Message, State]] = []
        self.cut: set[tuple[int, int]] = set()
        self.slow: set[int] = set()
        """Their logs are synced by the test."""
        self.down: set[int] = set()
        self.log: list[Message] = []
        """All that was ever sent."""
        self._core_class = core_class
        self._config = config
        self.membership = Membership.of(voters, learners)
        self.members: dict[int, Member] = {}
        for node_id in sorted(self.membership.members):
            terms = (logs or {}).get(node_id, [])
            self.add(node_id, terms, max([term, *terms]))

    def add(self, node_id: int, terms: Iterable[int] = (), term: int = 0) -> Member:
        disk = Disk(self.membership)
        for index, entry_term in enumerate(terms, start=1):
            disk.append(Entry(entry_term, index, KIND_DATA, 1, f"{entry_term}/{index}"))
        disk.sync(disk.writes_waiting)
        disk.hard_state = HardState(term, 0)
        config = RaftConfig(node_id=node_id, **self._config)
        config.validate()
        member = Member(config, disk, random.Random(node_id), self._send, self._core_class)
        self.members[node_id] = member
        return member

    def __getitem__(self, node_id: int) -> RaftCore:
        return self.members[node_id].core

    def _send(self, message: Message, state: State) -> None:
        self.log.append(message)
        self.wire.append((message, state))

    # --- what happens ---

    def run(self) -> None:
        """Every driver has its turn; every disk that is not slow syncs."""
        for node_id, member in self.members.items():
            if node_id in self.down:
                continue
            if node_id in self.slow:
                member.run()
                while member.disk.hard_states_waiting:
                    member.sync_hard_state()
                    member.run()
            else:
                member.settle()

    def deliver(self, wanted: Callable[[Message], bool] = lambda message: True) -> list[Message]:
        """Deliver what is on the wire now and `wanted`; what is not stays. Messages on a cut link are lost."""
        self.run()
        waiting, self.wire = self.wire, []
        delivered = []
        for message, state in waiting:
            if (message.sender, message.to) in self.cut or message.to not in self.members.keys() - self.down:
                continue
            if not wanted(message):
                self.wire.append((message, state))
                continue
            delivered.append(message)
            self.members[message.to].receive(message, state)
        self.run()
        return delivered

    def settle(self) -> None:
        """Deliver until the wire is silent."""
        for _ in range(1000):
            if not self.deliver():
                return
        raise AssertionError("the group does not come to rest")

    def tick(self, count: int = 1, *node_ids: int) -> None:
        """Ticks for all (or some), and everything that follows from each."""
        for _ in range(count):
            for node_id in node_ids or tuple(self.members):
                if node_id not in self.down:
                    self[node_id].tick()
            self.settle()

    def elect(self, node_id: int) -> None:
        """Have a member stand for election at once, as if the leader had asked it to, and win."""
        core = self[node_id]
        core.step(TimeoutNow(core.leader_id, node_id, core.term))
        self.settle()
        assert self[node_id].role is Role.LEADER, f"node {node_id} is {self[node_id].role.value}"

    def isolate(self, *node_ids: int) -> None:
        """Cut these off from all others, both ways."""
        for node_id in node_ids:
            for other in self.members:
                if other not in node_ids:
                    self.cut |= {(node_id, other), (other, node_id)}

    def heal(self) -> None:
        self.cut.clear()

    def stop(self, node_id: int) -> None:
        """A crash: what is not durable is lost."""
        self.members[node_id].disk.lose_unsynced()
        self.down.add(node_id)

    def start(self, node_id: int) -> None:
        self.down.discard(node_id)
        self.members[node_id].start()

    def restart(self, node_id: int) -> None:
        self.stop(node_id)
        self.start(node_id)

    # --- what is seen ---

    def terms(self, node_id: int) -> list[int]:
        """The terms of a member's log."""
        return [entry.term for entry in self.members[node_id].disk.seen.entries]

    def data(self, node_id: int) -> list[object]:
        """The entries that a member applied."""
        return [data for _, data in self.members[node_id].state]

    def leaders(self) -> list[int]:
        return [node_id for node_id, member in self.members.items() if member.core.role is Role.LEADER]
