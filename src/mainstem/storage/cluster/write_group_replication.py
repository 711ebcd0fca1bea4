"""Connects a node's write groups with their replicas elsewhere: ticks, messages to and from other nodes, leadership.

`WriteGroupReplication` passes the requests of each write group's consensus (`write_group_ports.Watcher`) to the node,
and messages from other nodes to their write group. It makes no decision itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mainstem.model import Durability
from mainstem.raft import HardState, Membership, Message, RaftConfig, Snapshot
from mainstem.raft.messages import InstallSnapshot
from mainstem.rpc.other_nodes import Calls, RaftTransport
from mainstem.storage.agreed_clock import Quorum
from mainstem.storage.cluster.snapshots import Snapshots
from mainstem.storage.cluster.withheld_entries import WithheldEntries
from mainstem.storage.cluster.write_group_replica import WriteGroupReplica
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.queues.message_store import LocalMessageStore
from mainstem.storage.write_groups.hard_states import NAME, REMEDY, HardStates
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

log = logging.getLogger(__name__)

HELD_BACK_SECONDS = 0.1
"""How often a start looks whether a write group that it waits for is held back by now: nothing else tells it, and it is
soon enough for nodes that wait for each other's starts."""

TICK_SECONDS = 0.05
UNBOUNDED = 1 << 30
"""Bytes per second that no disk takes."""
ELECTION_TICKS = 10
"""A follower stands for election after half a second to a second without its leader…"""
HEARTBEAT_TICKS = 2
"""…that speaks every tenth of a second."""


class Forgotten(Protocol):
    """The promises that this node has forgotten, write group by write group; durable."""

    @property
    def why(self) -> str:
        """The reason, for operators; empty: nothing is forgotten."""
        ...

    @property
    def lost_power(self) -> bool:
        """Whether a power loss took the ends of logs only, perhaps on many nodes at once."""
        ...

    def has_lost(self, group: int) -> bool:
        """Whether this node has forgotten promises of a write group and not regained them yet."""
        ...

    async def got_back(self, group: int) -> None: ...

    async def all_got_back(self) -> None:
        """Note that the promises of all write groups are regained; durable on return."""
        ...


class StartsKnown(Forgotten, Protocol):
    """The record of this node's starts, and of its forgotten promises."""

    @property
    def nonce(self) -> bytes:
        """The random name of this start."""
        ...

    async def check_votes(self, name: str, nonce: bytes) -> None:
        """Check a file with votes, saved last by the start with this nonce; if it is an older copy, its votes count as
        `has_lost`."""
        ...

    async def wrote(self, name: str) -> None:
        """Note that this start has saved the file."""
        ...

    async def blocks_lost(self, groups: Collection[int], count: int, why: str) -> None:
        """Note that acknowledged blocks of these write groups (of `count`) cannot be read any more: they are
        `has_lost`."""
        ...

    async def ends_lost(self, why: str) -> None:
        """The ends of all write groups' logs may be gone: they are `has_lost`, as by a loss of power."""
        ...

    async def alone_from(self, group: int, last_index: int) -> int | None:
        """The block from which on this node is a write group's only member, because an operator gave all others up; a
        later membership in the log takes precedence. None: the log alone has the membership."""
        ...


@dataclass(frozen=True)
class Consensus:
    """The ports and settings by which a node takes part in its write groups; the default is a node alone."""

    node_id: int = 1
    exchange: RaftTransport | None = None
    """The network; None: there are no other nodes."""
    replicas: Mapping[int, Sequence[int]] | None = None
    """Per write group the nodes it began with; None: this node alone has all write groups."""
    randomness: random.Random = field(default_factory=random.Random)
    leader_changed: Callable[[int, int, int], None] = lambda group, leader_id, term: None
    """Called for every write group here with its leader (0: none is known) and term, when these change."""
    serving_changed: Callable[[int, bool], None] = lambda group, serving: None
    """Called when this node begins or stops to serve a write group."""
    calls: Calls | None = None
    """Calls to other nodes; None: no snapshots are sent."""
    forgotten: StartsKnown | None = None
    """The promises that this node has forgotten; None: none, or no record of them exists."""
    quorum_times: Quorum | None = None
    """The clocks of the metadata quorum; None: this node's own clock gives the time."""
    placements: Callable[[], Mapping[int, Sequence[int]]] = dict
    """The nodes where placement wants the replicas of each write group now."""
    leader_heard: Callable[[int], int] = lambda group: -1
    """The node that leads a write group, by what other nodes have told; -1: none has."""
    founders: Callable[[], Mapping[int, Sequence[int]]] = dict
    """Per write group that came to those of the cluster's beginning, the nodes that begin it; of a node alone, the
    numbers count."""

    def founders_of(self, group: int) -> frozenset[int]:
        """The nodes that begin a write group which was added to the first ones; empty: it is one of the first."""
        founders = self.founders().get(group, ())
        return frozenset([self.node_id] if founders and self.replicas is None else founders)

    def has_lost(self, group: int) -> bool:
        return self.forgotten is not None and self.forgotten.has_lost(group)

    def has_lost_votes(self, group: int) -> bool:
        """Whether this node has forgotten its votes in a write group. A power loss takes no votes."""
        return self.forgotten is not None and self.forgotten.has_lost(group) and not self.forgotten.lost_power

    def members(self, group: int) -> Membership:
        if self.replicas is None:
            return Membership.of([self.node_id])
        return Membership.of(self.replicas.get(group) or self.founders_of(group))

    def others(self, group: int) -> list[int]:
        """The other nodes that a write group is placed on."""
        return sorted(self.members(group).members - {self.node_id})

    def config(self, durability: Durability, group: int, learner_bytes_per_second: int) -> RaftConfig:
        return RaftConfig(
            node_id=self.node_id,
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=HEARTBEAT_TICKS,
            commits_with_heartbeats=True,
            acknowledgements_wait=durability is Durability.ASYNC,
            entries_wait=durability is Durability.ASYNC,
            learner_bytes_per_tick=max(1, round(TICK_SECONDS * learner_bytes_per_second)),
            may_forget=durability is Durability.ASYNC or self.has_lost(group),
        )


class ReplicationParts(NamedTuple):
    """The parts that a replication drives. They are made for it, so it hears of them later."""

    groups: Sequence[WriteGroup]
    write_loop: WriteLoop
    messages: LocalMessageStore
    snapshots: Snapshots
    waits: Container[int] = ()
    """Write groups that this node has no part in until their blocks can be read again; then `resume`."""


class WriteGroupReplication:
    """The `Watcher` (`write_group_ports`) of a node's write groups: joins them to their logs and drives their ticks."""

    def __init__(
        self,
        consensus: Consensus,
        journal: Journal,
        journal_map: JournalMap,
        hard_states: HardStates,
        split_here: Callable[[int], int] = lambda group: 0,
        learner_bytes_per_second: int = UNBOUNDED,
    ) -> None:
        """`split_here` gives the last block of a write group that was split from this node's own journal, and so is
        committed. `learner_bytes_per_second`: the pace at which a write group that this node leads gives its log to
        replicas that catch up, besides twice what is new."""
        self._learner_bytes_per_second = learner_bytes_per_second
        self._consensus = consensus
        self._journal = journal
        self._map = journal_map
        self._hard_states = hard_states
        self._split_here = split_here
        self._driven: ReplicationParts | None = None
        self.silent: dict[int, Membership] = {}
        """Write groups whose promises this node has forgotten, with the members it knows, until `rejoin`."""
        self.silenced = asyncio.Event()
        """Set when a write group becomes silent."""
        self._beginning: set[int] = set()
        """Write groups whose replica here is about to be noted."""
        self._withheld = WithheldEntries(
            lambda group, late: self._parts.groups[group].consensus.send_withheld(late=late)
        )
        self._grown = asyncio.Event()
        """Set when there are write groups that were not looked at yet."""
        self._settled: dict[int, asyncio.Event] = {}
        """Set when a write group is served for the first time, or never will be."""

    def drive(self, driven: ReplicationParts) -> None:
        """Name the parts to drive, which were made for this one; called once, before `start`."""
        assert self._driven is None, "driven once"
        self._driven = driven

    @property
    def _parts(self) -> ReplicationParts:
        assert self._driven is not None, "`drive` comes before `start`"
        return self._driven

    async def start(self) -> None:
        """Take part in every write group that has a replica here, and return once those that this node has alone are
        served. Raises `StorageError` when promises to other nodes are not known any more."""
        hard_states = self._hard_states
        consensus = self._consensus
        if consensus.forgotten is not None:
            await consensus.forgotten.check_votes(NAME, hard_states.saved_in)
            hard_states.nonce = consensus.forgotten.nonce
        alone: list[WriteGroup] = []
        parts = [group for group in self._parts.groups if self.has_part(group)]
        for group in parts:
            founders = consensus.members(group.group).voters
            if not hard_states.began(group.group) and (added := consensus.founders_of(group.group)):
                hard_states.begin(group.group, added if consensus.node_id in added else ())
            elif not hard_states.began(group.group):
                founds = hard_states.is_new or bool(group.blocks.memberships) or consensus.exchange is None
                hard_states.begin(group.group, founders if founds else ())
            elif not (hard_states.came_later(group.group) or hard_states.founders(group.group)):
                hard_states.begin(group.group, founders)  # begun by a version that kept no founders
        await hard_states.save({})
        if consensus.forgotten is not None:
            await consensus.forgotten.wrote(NAME)
        for group in parts:
            began_with = self._began_with(group.group, consensus.members(group.group).members)
            hard_state = hard_states.of(group.group)
            votes_missing = hard_state.term == 0 and group.blocks.last_index() and len(began_with.voters) > 1
            if votes_missing and not consensus.has_lost_votes(group.group):
                what = "holds zeros only, it was damaged" if hard_states.zeroed else "is missing"
                raise StorageError(
                    f"write group {group.group} has a log and no record of this node's votes: the file `hard_states` "
                    f"{what}. {REMEDY}"
                )
            await self._go_on_alone(group)
            if group.group in self._parts.waits:
                continue
            members = self._members(group, began_with)
            if self._lacks_promises(group.group) and members.voters - {consensus.node_id}:
                self._silence(group.group, members)
                continue
            self._join(group, began_with)
            if group.consensus.voters == {consensus.node_id}:
                alone.append(group)
        shares = len(alone) < len(parts) or any(other.group in self._parts.waits for other in parts)
        for group in alone:
            await self._served_or_held_back(group, shares)
            if self._settled[group.group].is_set() and not group.serving:
                raise group.consensus.failure or StorageError(f"write group {group.group} is not served")

    async def _served_or_held_back(self, group: WriteGroup, shares: bool) -> None:
        """Wait until a write group that this node has alone is served. If the node `shares` others, it does not wait
        while the log is held back: for one that waits itself, until the journal is whole, or for one that other nodes
        have, and these may wait for this start. It may come to that meanwhile."""
        settled = self._settled[group.group]
        while not settled.is_set() and not (group.is_held_back and shares):
            with suppress(TimeoutError):
                async with asyncio.timeout(HELD_BACK_SECONDS):
                    await settled.wait()

    def has_part(self, group: WriteGroup) -> bool:
        """Whether this node has a part in the write group: it keeps it, wherever placement has the write group by now,
        until a leader says that it is no member."""
        if self.has_left(group.group):
            return False  # a replica that comes back begins with `take_part`
        placed = self._consensus.node_id in self._consensus.members(group.group).members
        began = bool(group.blocks.memberships) or self._hard_states.began(group.group)
        return placed or began or self.founds(group.group)

    def _began_with(self, number: int, placed: Collection[int]) -> Membership:
        """The membership the write group began with, as far as this node may act on it. A founder uses the founders,
        not today's placement: with that it could find a majority that overlaps no majority of the write group. A
        replica that came later counts as no member before the log or a snapshot says so: it must not stand for
        election, or count votes, with a membership that is not committed."""
        if self._hard_states.came_later(number):
            return Membership.of(set(placed) - {self._consensus.node_id})
        return Membership.of(self._hard_states.founders(number) or placed)

    async def _go_on_alone(self, group: WriteGroup) -> None:
        """Make this node the only member of a write group whose other members an operator gave up."""
        known, blocks = self._consensus.forgotten, group.blocks
        index = await known.alone_from(group.group, blocks.last_index()) if known is not None else None
        if index is None:
            return
        index = max(index, blocks.first_index() - 1)
        blocks.memberships[index] = Membership.of([self._consensus.node_id])
        if max(blocks.memberships) == index:
            log.warning("write group %d: this node goes on alone, the other members were given up", group.group)

    def _members(self, group: WriteGroup, began_with: Membership) -> Membership:
        """The membership of a write group, as far as this node's log tells."""
        memberships = group.blocks.memberships
        return memberships[max(memberships)] if memberships else began_with

    async def resume(self, number: int) -> None:
        """Take part in a write group that has waited; this node has forgotten none of its log. Raises
        `StorageError`."""
        assert self._parts.groups[number].consensus.core is None, f"write group {number} is here already"
        began_with = self._began_with(number, self._consensus.members(number).members)
        if self._lacks_promises(number):
            self._silence(number, self._members(self._parts.groups[number], began_with))
        else:
            self._join(self._parts.groups[number], began_with)

    def _lacks_promises(self, number: int) -> bool:
        """Whether the replica here has less than what this node once acknowledged: that was forgotten, or removed with
        a former replica."""
        return self._consensus.has_lost(number) or self._hard_states.returned(number)

    def _silence(self, number: int, members: Membership) -> None:
        self.silent[number] = members
        self.silenced.set()

    async def rejoin(
        self, number: int, hard_state: HardState, *, abstains_to: int, waits_for_leader: bool = False
    ) -> None:
        """Take part again in a write group whose promises this node has forgotten. Raises `StorageError`."""
        await self._hard_states.save({number: hard_state})
        group = self._parts.groups[number]
        began_with = self._began_with(number, self._consensus.members(number).members)
        del self.silent[number]
        self._join(group, began_with, abstains_to=abstains_to, waits_for_leader=waits_for_leader)
        if not abstains_to and not waits_for_leader and group.consensus.core is not None:
            group.consensus.core.campaign()
            group.consensus.pump()

    def _join(
        self, group: WriteGroup, began_with: Membership, *, abstains_to: int = 0, waits_for_leader: bool = False
    ) -> None:
        consensus = self._consensus
        self._settled[group.group] = asyncio.Event()
        if consensus.exchange is not None:
            consensus.exchange.join(group.group, WriteGroupReplica(group, self._journal))
        config = consensus.config(self._journal.durability, group.group, self._learner_bytes_per_second)
        group.consensus.join(
            config,
            self._hard_states.of(group.group),
            began_with,
            consensus.randomness,
            committed_index=min(self._split_here(group.group), group.blocks.last_index()),
            abstains_to=abstains_to,
            waits_for_leader=waits_for_leader,
        )

    def grow(self) -> None:
        """There are more write groups than before: `found_new` begins those that are to begin here."""
        self._grown.set()

    def founds(self, number: int) -> bool:
        """Whether a write group that was added is to begin on this node, and has not."""
        return self._consensus.node_id in self._consensus.founders_of(number) and not self._hard_states.began(number)

    async def found_new(self) -> None:
        """Begin the write groups that are added from now on, until cancelled. Raises `StorageError`."""
        while True:
            await self._grown.wait()
            self._grown.clear()
            for group in list(self._parts.groups):
                if self.founds(group.group):
                    await self.take_part(group.group, self._consensus.founders_of(group.group))

    async def take_part(self, number: int, placed: Collection[int]) -> None:
        """Begin a new replica of a write group, with an empty log; of a new write group as one of its founders. Raises
        `StorageError`."""
        group = self._parts.groups[number]
        if number in self.silent or number in self._parts.waits or number in self._beginning:
            return  # the replica is here, and comes back by itself, or is about to begin
        assert group.consensus.core is None, f"write group {number} is here already"
        if group.last_index:
            raise StorageError(f"write group {number}: the data of its former replica here is not removed yet")
        self._beginning.add(number)
        try:
            await self._begin(number)
        finally:
            self._beginning.discard(number)
        began_with = self._began_with(number, placed)
        if self._lacks_promises(number):
            self._silence(number, began_with)
        else:
            self._join(group, began_with)

    async def _begin(self, number: int) -> None:
        """Note durably that a replica begins here. Raises `StorageError`."""
        if self.founds(number):
            self._hard_states.begin(number, self._consensus.founders_of(number))
            log.info("write group %d: new, and begins on this node", number)
        else:
            self._hard_states.begin(number)
            log.info("write group %d: a replica of it comes to this node", number)
        await self._hard_states.save({})

    async def caught_up(self, number: int) -> None:
        """Note durably that a replica which returned here has everything that was acknowledged here before. Raises
        `StorageError`."""
        log.info("write group %d: its replica here has caught up, and votes as any other", number)
        self._hard_states.caught_up(number)
        await self._hard_states.save({})

    async def leave(self, number: int) -> None:
        """Note durably that this node is no member of a write group any more. Raises `StorageError`."""
        self._parts.groups[number].consensus.leave()
        if self._consensus.exchange is not None:
            self._consensus.exchange.leave(number)
        self._hard_states.leave(number)
        await self._hard_states.save({})

    def has_left(self, number: int) -> bool:
        """Whether this node was a member of a write group, and is none until it takes part again."""
        return self._hard_states.left(number)

    def has_alone(self, number: int) -> bool:
        """Whether no other node votes in a write group, by its log or, without one, by its founders."""
        memberships = self._parts.groups[number].blocks.memberships
        if not memberships and self._hard_states.came_later(number):
            return False
        if memberships:
            voters = memberships[max(memberships)].voters
        else:
            voters = self._hard_states.founders(number) or self._consensus.members(number).voters
        return voters <= {self._consensus.node_id}

    async def run(self, beat: Callable[[], object] = lambda: None) -> None:
        """Tick all write groups until cancelled; call `beat` at each tick."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for group in self._parts.groups:
                group.tick()
            beat()

    def stop(self) -> None:
        """Receive no more messages."""
        self._withheld.close()
        if self._consensus.exchange is not None:
            for group in self._settled:
                self._consensus.exchange.leave(group)

    # --- write_group_ports.Watcher ------------------------------------------------------------------------------

    def send(self, group: int, messages: Iterable[Message]) -> None:
        assert self._consensus.exchange is not None, "a node alone sends no messages"
        self._consensus.exchange.send(group, messages)

    def withholds(self, group: int) -> None:
        self._withheld.note(group)

    def wake(self) -> None:
        self._parts.write_loop.wake()

    def superseded(self, group: int, first_index: int, positions: Sequence[int], last_data: int) -> None:
        self._map.superseded(group, first_index, positions, last_data)

    def send_snapshot(self, group: int, message: InstallSnapshot) -> None:
        self._parts.snapshots.send(group, message)

    def install_snapshot(self, group: int, snapshot: Snapshot) -> None:
        self._parts.snapshots.install(group, snapshot)

    def leader_changed(self, group: int, leader_id: int, term: int) -> None:
        self._consensus.leader_changed(group, leader_id, term)
        hand_overs = self._parts.messages.hand_overs
        if leader_id == self._consensus.node_id and not self._parts.groups[group].serving:
            hand_overs.begin(group)  # clients may hear of it before it takes batches
        elif leader_id not in (0, self._consensus.node_id):
            hand_overs.led_by(group, leader_id)

    def hand_over_changed(self, group: int, *, begun: bool) -> None:
        if begun:
            self._parts.messages.hand_overs.begin(group)
        else:
            self._parts.messages.hand_overs.stays(group)

    def serving_changed(self, group: int, *, serving: bool) -> None:
        self._parts.messages.serve(group, serving=serving)
        if not serving:
            self._parts.messages.wake_readers()
        if group in self._settled:
            self._settled[group].set()
        self._consensus.serving_changed(group, serving)
