"""This node's part in the metadata quorum: owns the Raft core, and does what the core says.

A few tasks share one event loop. `_drive` runs `mainstem.raft`'s loop, persist → send → apply → advance, whenever
something happened; `quorum_disk` makes durable what it is handed, in that order, and tells the core; `_tick` counts
time while there are other members to hear from. A quorum of one voter elects itself at once, needs no clock, and
rests when no request comes.

A failed write ends the member: nobody knows what the disk holds until the next start, so the member falls silent and
the others elect a leader without it. A disk without room is different: the member waits for room (`room`). Meanwhile
it votes and hears what is committed, but acknowledges and applies no entry. A leader without room makes way for a
member that has some; where there is no such member, it refuses changes until all that it has logged is applied.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from mainstem.nameserver.disk.metadata_files import VOTE
from mainstem.nameserver.disk.metadata_log import MetadataLog
from mainstem.nameserver.disk.room import Room
from mainstem.nameserver.disk.vote_file import Vote, VoteFile
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.quorum.proposer import NotLeading, Unsettled
from mainstem.nameserver.quorum.quorum_disk import QuorumDisk
from mainstem.nameserver.quorum.quorum_log import QuorumLog
from mainstem.nameserver.quorum.quorum_snapshots import QuorumSnapshots, ReceivedSnapshot
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.raft import (
    KIND_DATA,
    KIND_NO_OP,
    BrokenInvariant,
    HardState,
    LoggedMembership,
    Membership,
    MembershipChange,
    Message,
    NotReady,
    RaftConfig,
    RaftCore,
    Ready,
    Role,
)
from mainstem.raft import NotLeader as RaftNotLeader
from mainstem.raft import Snapshot as RaftSnapshot
from mainstem.raft.leader.progress import PeerView
from mainstem.raft.messages import InstallSnapshot

log = logging.getLogger(__name__)

NO_ROOM_HERE = "there is no room on disk 1 for changes of the metadata: free space where write_dir is, then try again"

Sleep = Callable[[float], Awaitable[None]]


class Outside(NamedTuple):
    """Connects a member with the others; a quorum of one has none."""

    send: Callable[[Iterable[Message]], None]
    """Never blocks, may lose messages."""
    send_snapshot: Callable[[InstallSnapshot], Awaitable[bool]]
    """Has a member fetch the newest snapshot; returns whether the member has it."""
    tick_seconds: float = 0.05
    sleep: Sleep = asyncio.sleep


class MemberStart(NamedTuple):
    """The start of a member: its log, and how much of it its state contains."""

    log: QuorumLog
    memberships: Sequence[LoggedMembership]
    vote: Vote
    abstains_to: int = 0
    """The member has forgotten votes and entries; it neither votes nor acknowledges until it has this entry
    again."""


class MetadataQuorum:
    """One member: make it, then `run` it as a task until it is cancelled or fails."""

    def __init__(
        self,
        config: RaftConfig,
        started: MemberStart,
        metadata_log: MetadataLog,
        vote_file: VoteFile,
        replica: MetadataReplica,
        randomness: random.Random,
        outside: Outside | None,
    ) -> None:
        """`outside`: the way to the other members; None: this is a quorum of one, and stays that."""
        self._outside = outside
        self.failure: Exception | None = None
        self.version = 0
        """Goes up with every change for which `changed_since` returns."""
        self.node_id = config.node_id
        self.abstains_to = started.abstains_to
        """The entry that this member must have to vote and acknowledge again; 0: it has forgotten nothing."""
        self._entries = started.log
        self._replica = replica
        self._room = Room(self._sleep, self._room_missed)
        self.snapshots = QuorumSnapshots(started.memberships, metadata_log, started.log, replica, self._room)
        self._core = RaftCore(
            config,
            started.log,
            HardState(started.vote.term, started.vote.vote or 0),
            started.memberships,
            randomness,
            applied_index=replica.applied_index,
            abstains_to=started.abstains_to,
        )
        self._broken: BrokenInvariant | None = None
        self._strangers_voters: Membership | None = None
        """The membership as this node knows it from others, while only its own log calls it a member."""
        self._asked = 0
        self._news = asyncio.Event()
        self._disk = QuorumDisk(self._core, started.log, metadata_log, vote_file, self._room, self._news.set)
        self._refused_up_to = 0
        """Changes are refused until this entry is applied: its proposer was told that there is no room for
        it."""
        self._changed = asyncio.Event()
        self._in_company = asyncio.Event()
        self._reads: dict[object, asyncio.Future[bool]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._look_around()
                tasks.create_task(self._disk.write_votes(), name="metadata votes")
                tasks.create_task(self._disk.write_entries(), name="metadata disk")
                tasks.create_task(self._tick(), name="metadata ticks")
                if self._core.membership.voters == {self.node_id}:
                    self._core.campaign()
                await self._drive()
        except BaseExceptionGroup as group:
            self.failure = next((e for e in group.exceptions if isinstance(e, Exception)), None)
            raise
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._tasks = None
            self._fail_waiting()

    # for lookups and metrics

    @property
    def leader_id(self) -> int:
        """The leader's node id; 0: this node knows none."""
        return self._core.leader_id

    def whom_to_ask(self) -> int:
        """Another node that leads or may know the leader; 0: none. A node that is no member hears of no
        leader, so it asks the voters in turn."""
        leader = self._core.leader_id
        if leader:
            return leader if leader != self.node_id else 0
        if self.is_member:
            return 0
        voters = sorted(self.membership.voters)
        return voters[self._asked % len(voters)]

    def asked_in_vain(self) -> None:
        """The node that `whom_to_ask` named does not answer, or does not lead: name another one next time."""
        self._asked += 1

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def commit_index(self) -> int:
        return self._core.commit_index

    @property
    def last_index(self) -> int:
        """The last entry of this node's log, committed or not."""
        return self._core.last_index

    @property
    def serves(self) -> bool:
        """Whether this node leads, and has applied all that was ever committed."""
        return self.failure is None and self._core.serves

    @property
    def abstains(self) -> bool:
        """Whether the member still lacks entries that it has forgotten."""
        return self._core.abstains

    @property
    def installing(self) -> bool:
        """Whether a snapshot of the leader's is replacing this node's state just now."""
        return self._core.installing is not None

    def peers(self) -> list[PeerView]:
        """On the leader, the progress of the other members. Empty elsewhere."""
        return self._core.peers()

    @property
    def waits_for_room(self) -> bool:
        """Whether this node's disk is full, so that the node falls behind what is committed."""
        return bool(self._room.missed_by)

    @property
    def membership(self) -> Membership:
        return self._strangers_voters or self._core.membership

    @property
    def is_member(self) -> bool:
        """Whether this node takes part, as voter or learner."""
        return self.node_id in self.membership.members

    def follow_only(self, voters: Iterable[int]) -> None:
        """From now on this node is no member, whatever its log says, until a leader sends to it again."""
        self._strangers_voters = Membership.of(voters)
        self.tell()

    @property
    def entries(self) -> QuorumLog:
        return self._entries

    async def changed_since(self, version: int) -> None:
        """Wait until `version` has changed: there is another leader, or entries were applied."""
        while self.version == version:
            await self._changed.wait()

    def fail(self, error: Exception) -> None:
        """End the member: a part that it cannot do without has failed."""
        if self.failure is None:
            self.failure = error
        self._fail_waiting()

    def tell(self) -> None:
        """Wake all that wait for changes."""
        self.version += 1
        self._changed.set()
        self._changed.clear()

    # requests

    def propose(self, payload: bytes) -> int:
        """Log an entry and return its index. Raises `NotLeading`, `MetadataUnavailable`."""
        self._check_changes()
        try:
            entry = self._core.propose(payload, len(payload), KIND_DATA)
        except RaftNotLeader as error:
            raise NotLeading(str(error)) from error
        except NotReady as error:
            raise MetadataUnavailable(str(error)) from error
        self._news.set()
        return entry.index

    def change_membership(self, change: MembershipChange) -> int:
        """Log one step and return its entry's index. Raises as `propose` does, and `MembershipRefused`."""
        self._check_changes()
        try:
            entry = self._core.propose_membership(change)
        except RaftNotLeader as error:
            raise NotLeading(str(error)) from error
        except NotReady as error:
            raise MetadataUnavailable(str(error)) from error
        self._news.set()
        return entry.index

    async def member_forgot(self, node_id: int) -> tuple[int, int]:
        """Help a silent member that has forgotten something: returns (term, index) of an entry that is logged
        after this call and committed without that member. Raises `NotLeading`, `MetadataUnavailable`."""
        self._check_changes()
        try:
            self._core.member_forgot(node_id)
            entry = self._core.propose(b"", 0, KIND_NO_OP)
        except RaftNotLeader as error:
            raise NotLeading(str(error)) from error
        except NotReady as error:
            raise MetadataUnavailable(str(error)) from error
        self._news.set()
        while self._core.commit_index < entry.index:
            if self.failure is not None or self._core.term != entry.term or self._core.role is not Role.LEADER:
                raise NotLeading("the leader of the metadata quorum changed")
            await self.changed_since(self.version)
        return entry.term, entry.index

    async def read(self) -> None:
        """Wait until all that was committed before this call is applied here. Raises `MetadataUnavailable`,
        at once when no leader is known; a lost message keeps it waiting, so use a timeout."""
        self._check()
        context = object()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._reads[context] = future
        try:
            self._core.read_index(context)
            self._news.set()
            if not await future:
                raise MetadataUnavailable("the leader of the metadata quorum changed during a read; try again")
        except (RaftNotLeader, NotReady) as error:
            raise MetadataUnavailable(str(error)) from error
        finally:
            self._reads.pop(context, None)

    def received(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if not isinstance(
                message, InstallSnapshot
            ):  # a snapshot comes with its bytes, through `received_snapshot` only
                self._step(message)

    def received_snapshot(self, sender: int, term: int, received: ReceivedSnapshot) -> None:
        """Take a snapshot of the leader's whose bytes have arrived."""
        self.snapshots.received = received
        self._step(InstallSnapshot(sender, self.node_id, term, received.name))

    def _step(self, message: Message) -> None:
        if self.failure is not None or self._broken is not None or self._is_idle_talk(message):
            return
        try:
            self._core.step(message)
        except BrokenInvariant as error:
            self._broken = error  # ends `_drive`, not the task that delivers messages
        self._news.set()

    def _is_idle_talk(self, message: Message) -> bool:
        """Whether the message would only make answers pile up: while its term waits for room, the member can
        answer nothing. It then takes in only who leads."""
        return VOTE in self._room.missed_by and message.term == self.term and bool(self.leader_id)

    def unreachable(self, node_id: int) -> None:
        self._core.report_unreachable(node_id)
        self._news.set()

    def gone(self, node_id: int) -> None:
        self._core.report_gone(node_id)
        self._news.set()

    def transfer_leadership(self, to: int) -> None:
        self._core.transfer_leadership(to)
        self._news.set()

    def give_way(self) -> None:
        """If this node leads and hears from other voters, have the voter lead that lacks the fewest
        entries."""
        core = self._core
        if self.failure is not None or core.role is not Role.LEADER:
            return
        voters = core.membership.voters
        able = [peer for peer in core.peers() if peer.active and peer.node_id in voters]
        if able:
            self.transfer_leadership(max(able, key=lambda peer: peer.match_index).node_id)

    def _check(self) -> None:
        if self.failure is not None:
            raise MetadataUnavailable(f"the metadata takes no more changes: {self.failure}")

    def _check_changes(self) -> None:
        self._check()
        if self._core.applied_index < self._refused_up_to:
            raise MetadataUnavailable(NO_ROOM_HERE)

    # the loop

    async def _drive(self) -> None:
        core = self._core
        while True:
            if self._broken is not None:
                raise self._broken
            while (ready := core.ready()) is not None:
                self._persist(ready)
                self._send(ready)
                await self._apply(ready)
                core.advance(ready)
                self._after(ready)
            self._news.clear()
            await self._news.wait()

    def _persist(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self._disk.write(ready.hard_state)
        if ready.truncate_from:
            self._entries.truncate_from(ready.truncate_from)
        if ready.entries:
            self._entries.extend(ready.entries)
            self._disk.write(ready.entries)
        if ready.snapshot is not None:
            self._spawn(self._install(ready.snapshot), "metadata snapshot from the leader")

    def _send(self, ready: Ready) -> None:
        if self._outside is None:
            return
        if ready.messages:
            self._outside.send(ready.messages)
        for message in ready.snapshots_to_send:
            self._spawn(self._send_snapshot(message), "metadata snapshot to a member")

    async def _apply(self, ready: Ready) -> None:
        if ready.role_change is not None and ready.role_change.role is not Role.LEADER:
            self._replica.fail_proposals(Unsettled("the leader of the metadata quorum changed"))
        for entry in ready.committed:
            payload = entry.data if entry.kind == KIND_DATA else b""
            assert payload is None or isinstance(payload, bytes), "changes are logged encoded"
            await self._replica.apply(entry.index, entry.term, payload or b"")
            if isinstance(entry.data, Membership):
                self.snapshots.membership_applied(entry.data)

    def _after(self, ready: Ready) -> None:
        if ready.role_change is not None and ready.role_change.role is Role.LEADER:
            log.info("this node leads the metadata, in term %d", ready.role_change.term)
        for read in ready.reads:
            if (future := self._reads.get(read.context)) is not None and not future.done():
                future.set_result(read.granted)
        self._look_around()
        if self._core.leader_id:
            self._strangers_voters = None
        if ready.role_change is not None or ready.committed:
            self.tell()
        level = self._replica.applied_index == self._core.applied_index > 0
        if level and self.snapshots.due:
            self._spawn(self._make_snapshot(), "metadata snapshot")

    def _look_around(self) -> None:
        if self._core.membership.members - {self.node_id}:
            self._in_company.set()
        else:
            self._in_company.clear()

    # tasks

    async def _tick(self) -> None:
        while True:
            await self._in_company.wait()
            if self._outside is None:
                return
            await self._outside.sleep(self._outside.tick_seconds)
            if VOTE in self._room.missed_by or self._strangers_voters is not None:
                continue  # this node may not stand for election, or would among nodes that left it behind
            self._core.tick()
            self._make_way()
            self._news.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        assert self._tasks is not None, "the group runs"
        self._tasks.create_task(work, name=name)

    # a full disk

    async def _sleep(self, seconds: float) -> None:
        await (self._outside.sleep if self._outside is not None else asyncio.sleep)(seconds)

    def _room_missed(self) -> None:
        """Fail the changes that wait here, so that no caller waits for room that no other member has
        either."""
        if self._core.membership.voters == {self.node_id}:
            self._refused_up_to = self._core.last_index
            self._replica.fail_proposals(MetadataUnavailable(f"{NO_ROOM_HERE}; the change may be made then"))

    def _make_way(self) -> None:
        """A leader that cannot log hands over to a voter that could log more, as its disk has shown."""
        core = self._core
        if not self._room.missed_by or core.role is not Role.LEADER or core.transfer_to:
            return
        able = [
            peer
            for peer in core.peers()
            if peer.active and peer.match_index > core.persisted_index and peer.node_id in core.membership.voters
        ]
        if able:
            successor = max(able, key=lambda peer: peer.match_index).node_id
            log.info("node %d, which has room on its disk, is to lead the metadata quorum", successor)
            core.transfer_leadership(successor)

    # snapshots

    async def _make_snapshot(self) -> None:
        try:
            await self.snapshots.make()
        except Exception:  # the log stays as it is, longer than wanted; the next try comes when it has grown
            log.exception("no snapshot of the metadata could be made")

    async def _install(self, name: RaftSnapshot) -> None:
        await self._disk.all_written()
        if await self.snapshots.take(name):
            self._core.snapshot_installed(name)
            self._look_around()
            self.tell()
        else:
            self._core.snapshot_failed(name)
        self._news.set()

    async def _send_snapshot(self, message: InstallSnapshot) -> None:
        assert self._outside is not None, "there is a member to send to"
        ok = False
        try:
            ok = await self._outside.send_snapshot(message)
        except Exception:  # this member gets no snapshot now, and is offered it again; the others go on
            log.exception("no snapshot of the metadata could be sent to node %d", message.to)
        self._core.report_snapshot(message.to, ok)
        self._news.set()

    # the end

    async def remember_commit(self) -> None:
        """Call `QuorumDisk.remember_commit`, at an orderly stop."""
        if self.failure is None:
            await self._disk.remember_commit()

    def _fail_waiting(self) -> None:
        reason = self.failure if self.failure is not None else "the node is stopping"
        error = MetadataUnavailable(f"the metadata takes no more changes: {reason}")
        self._replica.fail_proposals(error)
        for future in self._reads.values():
            if not future.done():
                future.set_exception(error)
        self.tell()
