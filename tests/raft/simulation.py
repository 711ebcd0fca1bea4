"""A group of cores under everything that can happen to it, from one seed.

The network loses, repeats, delays and reorders messages, and is cut in one or both directions. Disks sync when chance
has it, out of step with everything, and crashes keep only what is durable (and at times a little more). Clients
propose, read, add, promote and remove members, hand over leadership; logs are compacted. `Invariants` watches. In the
end the network heals, and the group must get everything done that it was asked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from tests.raft.disk import Disk, State
from tests.raft.invariants import Invariants, Violation, require
from tests.raft.member import Member

from mainstem.raft import (
    BrokenInvariant,
    ChangeKind,
    Membership,
    MembershipChange,
    MembershipRefused,
    Message,
    NotLeader,
    NotReady,
    RaftConfig,
    RaftCore,
    Role,
)
from mainstem.raft.messages import InstallSnapshot

NODES_MAX = 6
WIRE_MAX = 400


@dataclass
class Read:
    floor: int
    """The index committed anywhere when it was asked."""


class SimulatedMember(Member):
    """Tells the invariants what it applies."""

    invariants: Invariants
    happened: Counter[str]

    def take(self) -> bool:
        taken = super().take()
        if taken and self.ready is not None:
            self.invariants.applying(self, self.ready.committed)
            self.happened["truncated"] += self.ready.truncate_from > 0
            change = self.ready.role_change
            self.happened["elected"] += change is not None and change.role is Role.LEADER
        return taken


class Simulation:
    """`Simulation(seed).play()` raises `Violation`, or what the cores themselves find impossible."""

    def __init__(self, seed: int, core_class: type[RaftCore] = RaftCore, steps: int = 2500) -> None:
        self.rng = rng = random.Random(seed)
        self.steps = steps
        self._core_class = core_class
        self.invariants = Invariants()
        self.happened: Counter[str] = Counter()
        self.wire: list[tuple[Message, State]] = []
        self.cut: set[tuple[int, int]] = set()
        self.loss = rng.choice([0.0, 0.02, 0.2])
        self.repeats = rng.choice([0.0, 0.1])
        self.reorders = rng.choice([0.0, 0.3, 1.0])
        self.crashes = rng.choice([0.0, 0.005, 0.02])
        self.hurried = rng.choice([0.5, 0.95])
        """How often a driver has its turn and its disk syncs right after an event."""
        unruly = rng.random() < 0.3
        """Nobody is protected, everybody wants to lead."""
        self.settings = RaftConfig(
            node_id=1,
            election_ticks=rng.choice([3, 8]),
            heartbeat_ticks=1,
            entries_in_flight_max=rng.choice([2, 8, 256]),
            bytes_in_flight_max=rng.choice([20, 1000]),
            append_bytes_max=rng.choice([1, 30, 1000]),
            apply_bytes_max=rng.choice([1, 1000]),
            learner_lag_max=rng.choice([1, 8]),
            check_quorum=not unruly and rng.random() < 0.9,
            pre_vote=not unruly and rng.random() < 0.9,
            commits_with_heartbeats=seed % 2 == 1,
            acknowledgements_wait=seed % 3 == 1,
            entries_wait=seed % 3 == 1 and seed % 4 < 2,
        )
        """Of node 1; the others' but for the id."""
        voters = rng.choice([3, 5] if unruly else [1, 2, 3, 3, 3, 5, 5])
        self.membership = Membership.of(range(1, voters + 1))
        self.members: dict[int, SimulatedMember] = {}
        self.up: set[int] = set()
        self._hasty = {node_id for node_id in range(1, NODES_MAX + 1) if rng.random() < 0.3}
        """Whose clocks run faster."""
        self._asked = 0
        for node_id in range(1, voters + 1):
            self._add(node_id)
        self._actions: list[tuple[float, Callable[[], None]]] = [
            (20, self._tick),
            (100, self._deliver),
            (15, self._turn),
            (15, self._sync),
            (8, self._propose),
            (10, self._read),
            (1.0, self._change_membership),
            (0.5, self._transfer),
            (6 if unruly else 0.3, self._campaign),
            (1.0, self._compact),
            (rng.choice([0.5, 2]), self._partition),
            (rng.choice([0.15, 0.7]), self._heal),
            (0.3, self._unreachable),
            (0.3, self._gone),
            (100 * self.crashes, self._crash),
            (3, self._restart),
        ]

    def _add(self, node_id: int) -> None:
        config = msgspec.structs.replace(self.settings, node_id=node_id)
        config.validate()
        member = SimulatedMember(
            config, Disk(self.membership), random.Random(self.rng.random()), self._send, self._core_class
        )
        member.invariants = self.invariants
        member.happened = self.happened
        self.members[node_id] = member
        self.up.add(node_id)

    def play(self) -> None:
        weights = [weight for weight, _ in self._actions]
        actions = [action for _, action in self._actions]
        try:
            for step, action in enumerate(self.rng.choices(actions, weights, k=self.steps)):
                action()
                if step % 50 == 0:
                    self.invariants.check_logs(list(self.members.values()))
            self._settle()
        except BrokenInvariant as error:
            raise Violation(f"a core found: {error}") from error

    # --- the network ---

    def _send(self, message: Message, state: State) -> None:
        self.invariants.sent(self.members[message.sender], message)
        if (message.sender, message.to) in self.cut or self.rng.random() < self.loss:
            self._lose(message)
            return
        self.wire.append((message, state))
        if self.rng.random() < self.repeats:
            self.wire.append((message, state))
        if len(self.wire) > WIRE_MAX:
            self._lose(self.wire.pop(0)[0])

    def _lose(self, message: Message) -> None:
        self.happened["lost"] += 1
        self._snapshot_sent(message, False)

    def _snapshot_sent(self, message: Message, ok: bool) -> None:
        """A driver always learns what became of a snapshot it sent, if wrongly at times."""
        if isinstance(message, InstallSnapshot) and message.sender in self.up:
            self.members[message.sender].core.report_snapshot(message.to, ok)

    def _deliver(self) -> None:
        if not self.wire:
            return
        at = self.rng.randrange(len(self.wire)) if self.rng.random() < self.reorders else 0
        message, state = self.wire.pop(at)
        if message.to not in self.up or (message.sender, message.to) in self.cut:
            self._lose(message)
            return
        self.happened[type(message).__name__] += 1
        member = self.members[message.to]
        member.receive(message, state)
        self._snapshot_sent(message, self.rng.random() < 0.8)
        self._event(member)

    # --- members ---

    def _event(self, member: SimulatedMember) -> None:
        """Something happened to a member: its driver may have its turn at once, or later."""
        self._check(member)
        if self.rng.random() < self.hurried:
            self._drive(member)
        if self.rng.random() < self.hurried:
            self._sync_some(member)
            self._drive(member)

    def _drive(self, member: SimulatedMember) -> None:
        if member.ready is not None:
            member.advance()
        while member.take():
            self._check(member)
            if self.rng.random() < 0.1:
                return  # advanced later: other things happen in between
            member.advance()
        self._check_reads(member)

    def _sync_some(self, member: SimulatedMember) -> None:
        disk = member.disk
        if disk.hard_states_waiting and self.rng.random() < 0.7:
            member.sync_hard_state()
            self._check(member)
        if disk.writes_waiting and member.ready is None:
            member.sync(self.rng.randint(1, disk.writes_waiting))
            self._check(member)

    def _check(self, member: SimulatedMember) -> None:
        self.invariants.check(member, self.members.values())

    def _check_reads(self, member: SimulatedMember) -> None:
        for result, applied_index in member.answered:
            assert isinstance(result.context, Read)
            if result.granted:
                self.happened["read"] += 1
                require(
                    applied_index >= result.context.floor,
                    f"node {member.node_id} answers a read at {applied_index}, {result.context.floor} was committed",
                )
        member.answered.clear()

    def _any(self) -> SimulatedMember | None:
        return self.members[self.rng.choice(sorted(self.up))] if self.up else None

    def _leader(self) -> SimulatedMember | None:
        leaders = [node_id for node_id in sorted(self.up) if self.members[node_id].core.role is Role.LEADER]
        return self.members[self.rng.choice(leaders)] if leaders else None

    # --- what happens ---

    def _tick(self) -> None:
        if (member := self._any()) is not None:
            for _ in range(2 if member.node_id in self._hasty else 1):
                member.core.tick()
            self._event(member)

    def _turn(self) -> None:
        if (member := self._any()) is not None:
            if member.core.withholds:
                self.happened["withheld"] += 1
            if self.rng.random() < 0.5:  # what a driver forgets heartbeats bring
                member.core.send_withheld()
            self._drive(member)

    def _sync(self) -> None:
        if (member := self._any()) is not None:
            self._sync_some(member)

    def _propose(self) -> None:
        if (member := self._leader()) is not None:
            self._asked += 1
            try:
                member.core.propose(f"value {self._asked}", self.rng.choice([1, 10, 50]))
            except NotReady:
                return
            self.happened["proposed"] += 1
            self._event(member)

    def _read(self) -> None:
        member = self._any() if self.rng.random() < 0.5 else self._leader()
        if member is not None:
            try:
                member.core.read_index(Read(self.invariants.committed_index))
            except (NotLeader, NotReady):
                return
            self._event(member)

    def _change_membership(self) -> None:
        member = self._leader()
        if member is None:
            return
        kind = self.rng.choice(list(ChangeKind))
        node_id = self.rng.randint(1, NODES_MAX)
        if learners := sorted(member.core.membership.learners):
            kind = self.rng.choice([kind, ChangeKind.PROMOTE])
            node_id = self.rng.choice(learners)
        if kind is ChangeKind.ADD_LEARNER and node_id not in self.members:
            self._add(node_id)
        try:
            member.core.propose_membership(MembershipChange(kind, node_id))
        except (NotReady, MembershipRefused):
            return
        self.happened[kind.value] += 1
        self._event(member)

    def _transfer(self) -> None:
        if (member := self._leader()) is not None:
            try:
                member.core.transfer_leadership(self.rng.choice(sorted(member.core.membership.voters)))
            except MembershipRefused:
                return
            self.happened["transfer"] += 1
            self._event(member)

    def _campaign(self) -> None:
        if (member := self._any()) is not None:
            member.core.campaign()
            self._event(member)

    def _compact(self) -> None:
        member = self._any()
        if member is None or member.ready is not None or member.disk.writes_waiting:
            return
        if member.core.installing is None and member.applied_index > 0:
            member.compact(self.rng.choice([0, 0, 3, 20]))
            self.happened["compacted"] += 1

    def _partition(self) -> None:
        """Cut the group in two, or some links one way."""
        ids = sorted(self.members)
        if self.rng.random() < 0.6:
            side = {node_id for node_id in ids if self.rng.random() < 0.5}
            self.cut = {(a, b) for a in ids for b in ids if (a in side) != (b in side)}
        else:
            self.cut = {(a, b) for a in ids for b in ids if a != b and self.rng.random() < 0.3}

    def _heal(self) -> None:
        self.cut.clear()

    def _unreachable(self) -> None:
        if (member := self._leader()) is not None:
            member.core.report_unreachable(self.rng.choice(sorted(self.members)))

    def _gone(self) -> None:
        """True or not."""
        if (member := self._any()) is not None:
            member.core.report_gone(self.rng.choice([member.core.leader_id, *sorted(self.members)]))

    def _crash(self) -> None:
        if (member := self._any()) is not None:
            self.happened["crash"] += 1
            self.up.discard(member.node_id)
            member.crash()

    def _restart(self) -> None:
        down = sorted(self.members.keys() - self.up)
        if down:
            self._start(self.rng.choice(down))

    def _start(self, node_id: int) -> None:
        self.invariants.restarted(node_id)
        self.members[node_id].start()
        self.up.add(node_id)

    # --- the end ---

    def _settle(self) -> None:
        """Everything is well again: a leader is found, commits, and brings everybody along."""
        self.cut.clear()
        self.loss = self.repeats = self.reorders = self.crashes = 0.0
        for node_id in sorted(self.members.keys() - self.up):
            self._start(node_id)
        marker: object = None
        for _ in range(600):
            for member in self.members.values():
                member.core.tick()
                self._calm(member)
            for _ in range(20 * NODES_MAX):
                if self.wire:
                    message, state = self.wire.pop(0)
                    self.members[message.to].receive(message, state)
                    self._snapshot_sent(message, True)
                    self._calm(self.members[message.to])
            leader = self._leader_of_all()
            if leader is None or leader.core.transfer_to:
                continue
            if marker is None or marker not in [data for _, data in leader.state]:
                marker = f"marker {leader.core.term}"
                if not any(data == marker for _, data in leader.state) and leader.core.serves:
                    leader.core.propose(marker, 1)
                    self._calm(leader)
            elif self._all_have(marker, leader):
                self.invariants.check_logs(list(self.members.values()))
                return
        raise Violation("the group does not get anything done any more")

    def _calm(self, member: SimulatedMember) -> None:
        while True:
            if member.ready is not None:
                member.advance()
            while member.take():
                self._check(member)
                member.advance()
            self._check_reads(member)
            disk = member.disk
            if not disk.writes_waiting and not disk.hard_states_waiting:
                return
            while disk.hard_states_waiting:
                member.sync_hard_state()
            member.sync()
            self._check(member)

    def _leader_of_all(self) -> SimulatedMember | None:
        leaders = [member for member in self.members.values() if member.core.role is Role.LEADER]
        return max(leaders, key=lambda member: member.core.term, default=None)

    def _all_have(self, marker: object, leader: SimulatedMember) -> bool:
        return all(
            any(data == marker for _, data in self.members[node_id].state) for node_id in leader.core.membership.members
        )


def play(seed: int, core_class: type[RaftCore] = RaftCore) -> Simulation:
    """One run; its seed stands in the error."""
    simulation = Simulation(seed, core_class)
    try:
        simulation.play()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error
    return simulation
