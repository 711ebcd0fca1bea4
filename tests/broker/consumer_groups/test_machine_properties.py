"""Random lives of a group: whatever clients, time and restarts do, these things hold.

Checked after every step: generations never go back while the machine lives, nor in the log; member ids and
instance ids are unique; a stable group has one leader, a member; a member's assignment is the one its leader
made for it in that generation; every answer is given once; a machine made from the log equals the live one in
all that the log is to keep; committed offsets are what was last committed (H). Checked at the end: when
everybody falls silent, every waiting request is answered and the group is empty.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.broker.consumer_groups.small_steps import small_steps
from tests.broker.consumer_groups.transcript import GROUP, Pending, Transcript, protocols
from tests.examples import examples

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroupState
from mainstem.broker.consumer_groups.step import ConsumerGroupRecord, ReadRecord
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind
from mainstem.protocol.error_codes import ErrorCode

DYNAMIC = ("a", "b", "c")
STATIC = {"s": "instance-s", "t": "instance-t"}
CLIENTS = st.sampled_from((*DYNAMIC, *STATIC))
OFFERS = {"range": protocols("range", "sticky"), "sticky": protocols("sticky", "range"), "one": protocols("range")}
SILENCE_MS = 3_600_000


@dataclass
class Client:
    """The knowledge of a client. `generation` is -1 until it has joined."""

    generation: int = -1
    join: Pending | None = None
    sync: Pending | None = None


def kept(machine: ConsumerGroupMachine) -> dict[str, list[ReadRecord]]:
    """All of a machine that a restart must bring back."""
    groups = {group_id: list(machine.snapshot(group_id)) for group_id in machine.state.classic}
    return {group_id: sorted(records, key=repr) for group_id, records in groups.items() if records}


class GroupLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = Transcript(ConsumerGroupsConfig(rebalance_delay_ms=1_000, group_size_max=4))
        self.table.restart()
        self.clients = {name: Client() for name in (*DYNAMIC, *STATIC)}
        self.committed: dict[tuple[str, int], int] = {}
        self.highest_generation = 0

    # --- what clients do -----------------------------------------------------------------------------

    @rule(name=CLIENTS, offer=st.sampled_from(sorted(OFFERS)), version=st.sampled_from([3, 8, 9]))
    def join(self, name: str, offer: str, version: int) -> None:
        self.clients[name].join = self.table.join_once(
            name, offers=OFFERS[offer], version=version, instance=STATIC.get(name)
        )
        self._settle()

    @rule(name=st.sampled_from(sorted(STATIC)), version=st.sampled_from([8, 9]))
    def restart_static(self, name: str, version: int) -> None:
        self.clients[name] = Client()
        self.clients[name].join = self.table.join_once(
            name, instance=STATIC[name], offers=OFFERS["range"], version=version, member_id=""
        )
        self._settle()

    @rule(name=CLIENTS)
    def sync(self, name: str) -> None:
        client = self.clients[name]
        if name not in self.table.ids:
            return
        group = self.table.machine.state.classic.get(GROUP)
        shares = {}
        if group is not None:
            for other, member_id in self.table.ids.items():
                if member_id in group.members:
                    shares[other] = f"{client.generation}/{STATIC.get(other, member_id)}".encode()
        client.sync = self.table.sync(name, client.generation, shares, instance=STATIC.get(name))
        self._settle()

    @rule(names=st.sets(CLIENTS, min_size=1), offer=st.sampled_from(sorted(OFFERS)), all_sync=st.booleans())
    def gather(self, names: set[str], offer: str, all_sync: bool) -> None:
        """Clients that do as they should, so that random lives reach stable groups of several members."""
        for _ in range(2):  # the first time some may only be given an id
            for name in sorted(names):
                if self.clients[name].join is None:
                    self.join(name, offer, 9)
        self.table.wait(2_000)
        self._settle()
        if all_sync:
            for name in sorted(names):
                self.sync(name)
        group = self.table.machine.state.classic.get(GROUP)
        if group is not None:
            event(f"{group.state.value}, {len(group.members)} members")

    @rule(name=CLIENTS)
    def heartbeat(self, name: str) -> None:
        if name in self.table.ids:
            self.table.heartbeat(name, self.clients[name].generation, instance=STATIC.get(name))
            self._settle()

    @rule(name=CLIENTS)
    def leave(self, name: str) -> None:
        if name in self.table.ids:
            self.table.leave(name)
            self._settle()

    @rule(name=CLIENTS, partition=st.integers(0, 2), offset=st.integers(0, 1_000))
    def commit(self, name: str, partition: int, offset: int) -> None:
        key = ("flights", partition)
        client = name if name in self.table.ids else None
        codes = self.table.commit(
            {key: offset}, client=client, generation=self.clients[name].generation, instance=STATIC.get(name)
        )
        if codes == [ErrorCode.NONE]:
            self.committed[key] = offset

    @rule(ms=st.sampled_from([1, 900, 5_000, 10_000, 60_000]))
    def wait(self, ms: int) -> None:
        self.table.wait(ms)
        self._settle()

    @rule()
    def delete_group(self) -> None:
        if self.table.delete_group() is ErrorCode.NONE:
            self.committed.clear()
            self.highest_generation = 0

    @rule()
    def restart(self) -> None:
        before = kept(self.table.machine)
        self.table.restart()
        assert kept(self.table.machine) == before
        for client in self.clients.values():
            client.join = client.sync = None
        group = self.table.machine.state.classic.get(GROUP)
        self.highest_generation = 0 if group is None else group.generation

    @rule(share=st.floats(0, 1), tombstones_go=st.booleans())
    def compact(self, share: float, tombstones_go: bool) -> None:
        """Of the first records of the log the latest of each key stay, but for tombstones if their time is over."""
        log = self.table.log
        end = int(len(log) * share)
        newest = {repr(record.key): record for record in log[:end]}
        left = [record for record in log[:end] if newest[repr(record.key)] is record]
        self.table.log = [record for record in left if not (tombstones_go and record.value is None)] + log[end:]

    @property
    def unfinished(self) -> bool:
        """Whether something is left of work on all members."""
        return TimerKey(TimerKind.WORK) in self.table.machine.timers

    def _settle(self) -> None:
        """Clients read the answers that have come."""
        for name, client in self.clients.items():
            if client.join is not None and client.join.answered:
                answer, client.join = client.join, None
                if answer.member_id:
                    self.table.ids[name] = answer.member_id
                if answer.error is ErrorCode.NONE:
                    client.generation = answer.generation_id
                    assert (len(answer.members) > 0) <= (answer.leader == answer.member_id)
                elif answer.error is ErrorCode.UNKNOWN_MEMBER_ID:
                    self.table.ids.pop(name, None)
                    client.generation = -1
            if client.sync is not None and client.sync.answered:
                answer, client.sync = client.sync, None
                if answer.error is ErrorCode.NONE and answer.assignment:
                    generation, whose = answer.assignment.decode().split("/")
                    assert int(generation) == client.generation
                    assert whose == STATIC.get(name, self.table.ids[name])

    # --- what holds ----------------------------------------------------------------------------------

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.table.machine.state.classic.get(GROUP)
        if group is None:  # empty and idle for long: forgotten, and who joins again begins anew
            self.highest_generation = 0
            return
        assert group.generation >= self.highest_generation
        self.highest_generation = group.generation
        assert all(member_id == member.member_id for member_id, member in group.members.items())
        instances = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None}
        assert instances == group.static_members
        assert not group.pending_members & group.members.keys()
        assert group.pending_sync <= group.members.keys()
        assert group.awaiting_join == sum(m.join_ticket is not None for m in group.members.values())
        assert (group.leader in group.members) == bool(group.members)
        if group.members:
            assert group.selected_protocol() is not None
        if group.state is ConsumerGroupState.STABLE:
            assert group.persisted is not None
            assert group.persisted.generation == group.generation
            assert group.persisted.leader == group.leader
            rows = {row.member_id: row.assignment for row in group.persisted.members}
            assert rows == {member.member_id: member.assignment for member in group.members.values()}
            assert self.unfinished or all(member.sync_ticket is None for member in group.members.values())
        if group.state is ConsumerGroupState.EMPTY:
            assert not group.members
        if group.state is not ConsumerGroupState.PREPARING_REBALANCE:
            assert self.unfinished or group.awaiting_join == 0
        if not self.unfinished:
            assert group.bytes_held == sum(member.size_bytes for member in group.members.values())

    @invariant()
    def waiting_requests_are_known(self) -> None:
        group = self.table.machine.state.classic.get(GROUP)
        members = [] if group is None else list(group.members.values())
        tickets = [t for m in members for t in (m.join_ticket, m.sync_ticket) if t is not None]
        assert sorted(tickets) == sorted(self.table.pending)

    @invariant()
    def the_log_says_what_is_to_be_kept(self) -> None:
        assert kept(self.table.replayed()) == kept(self.table.machine)
        generation = 0
        for record in self.table.log:
            if isinstance(record, ConsumerGroupRecord):
                if record.value is not None:
                    assert record.value.generation >= generation
                generation = 0 if record.value is None else record.value.generation

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        assert self.table.fetch() == self.committed

    def teardown(self) -> None:
        self.table.wait(SILENCE_MS)
        assert self.table.pending == {}
        assert self.table.state in ("Empty", "Dead")


GroupLife.TestCase.settings = settings(max_examples=examples(250), stateful_step_count=60, deadline=None)
TestGroupLife = GroupLife.TestCase


class GroupLifeInSteps(GroupLife):
    """The same, with one member looked at in a step, so that anything may come before the next."""

    def __init__(self) -> None:
        self._small = ExitStack()
        self._small.enter_context(small_steps())
        super().__init__()

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.table.advance()
        self._settle()

    @rule(offer=st.sampled_from(sorted(OFFERS)), joins=st.integers(0, 9), syncs=st.integers(0, 12))
    def hurry(self, offer: str, joins: int, syncs: int) -> None:
        """All of them come and are answered in so many steps, and those that have heard ask for their assignment."""
        for _ in range(2):
            for name in sorted(self.clients):
                if self.clients[name].join is None:
                    self.join(name, offer, 9)
        self.table.now_ms += 2_000
        self.step(joins)
        for name in sorted(self.clients, reverse=True):
            if self.clients[name].join is None and self.clients[name].generation > 0:
                self.sync(name)
        self.step(syncs)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._small.close()


GroupLifeInSteps.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
TestGroupLifeInSteps = GroupLifeInSteps.TestCase
