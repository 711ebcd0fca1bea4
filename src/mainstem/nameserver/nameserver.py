"""The nameserver of a node: answers about the metadata at once, changes it one command at a time.

Strategy: the metadata is the state machine of a Raft group, of one member or several. Lookups read this node's
replica in memory and never wait (`lookups`); who needs the newest state waits for it (`waits`). Clients change topics
(`administration`), operators the cluster (`operations`). The leader's one writer (`proposer`) makes a change: it turns
the request (`changes`) into commands, checks and logs them; every member applies them and tells its listeners. Other
nodes send their requests to the leader (`requests`). Each member drives the quorum's core (`metadata_quorum`) over its
log on disk (`metadata_log`, `vote_file`). Beside it, `heartbeats` keeps as soft state which nodes live and which node
leads which write group.

Invariants: a change of which a caller is told is on the disks of a majority and applied on the caller's node; state
in memory equals the log replayed; a topic number is never reused; the nameserver never deletes messages, and refuses
a directory that holds messages but no metadata rather than take it for a new one (topic numbers would start anew and
meet the old messages).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any

from mainstem.errors import is_of_disk
from mainstem.model import FeatureLevel, Node, Sample, partition_of, topic_number_of
from mainstem.nameserver.administration.access_administration import (
    AclAdministration,
    MetadataCredentials,
    QuotaAdministration,
)
from mainstem.nameserver.administration.config_administration import ConfigAdministration
from mainstem.nameserver.administration.metadata_administration import MetadataAdministration
from mainstem.nameserver.administration.token_administration import TokenAdministration, TokenExpiry
from mainstem.nameserver.beginning import Beginning, begin
from mainstem.nameserver.cluster.balance_planner import BalancePlanner, ToldFacts
from mainstem.nameserver.cluster.balancing import Balancer, BalancerSettings
from mainstem.nameserver.cluster.draining import Draining
from mainstem.nameserver.cluster.heartbeats import Condition, Heartbeats
from mainstem.nameserver.cluster.leader_duties import LeaderDuties
from mainstem.nameserver.cluster.level_raising import LevelRaising
from mainstem.nameserver.cluster.node_liveness import NodeState, Thresholds
from mainstem.nameserver.cluster.node_loads import NodeLoads
from mainstem.nameserver.cluster.quorum_positions import QuorumPositions
from mainstem.nameserver.cluster.registration import Admission, Registration
from mainstem.nameserver.cluster.start_check import OldCopy
from mainstem.nameserver.cluster.write_group_leaders import WriteGroupLeaders
from mainstem.nameserver.cluster_ports import NO_FACTS, ClusterPorts, Connect, Facts
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.directory import member_id, open_directory
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError, NodeWasRemoved
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.operations import ClusterOperations
from mainstem.nameserver.quorum.follow import Follower
from mainstem.nameserver.quorum.metadata_quorum import MemberStart, MetadataQuorum, Outside
from mainstem.nameserver.quorum.proposer import Proposer
from mainstem.nameserver.quorum.quorum_member import QuorumMember
from mainstem.nameserver.quorum.standing import Standing
from mainstem.nameserver.quorum.transfer import Transfer, offer_snapshot
from mainstem.nameserver.recent_moves import RecentMoves
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.service import Service
from mainstem.nameserver.state.changes import Ids
from mainstem.nameserver.state.commands import Event, NodeRegistered, NodeRemoved
from mainstem.nameserver.state.node_table import removed_text
from mainstem.nameserver.state.plans.drain_plan import Standings
from mainstem.nameserver.state.plans.queue_plan import QueueShift
from mainstem.nameserver.state.replica import Listener
from mainstem.nameserver.waits import MetadataWaits
from mainstem.ports import Files, ForwardedClients
from mainstem.raft import BrokenInvariant, RaftConfig, RaftError
from mainstem.rpc.messages.loads import ToldLoad, ToldLoads
from mainstem.rpc.messages.metadata import WantSlotMove
from mainstem.rpc.raft.raft_member import METADATA_QUORUM
from mainstem.security.quotas.sharing import QuotaUser
from mainstem.supervised import Supervision

STOP_SECONDS_MAX = 2.0
"""How long a stop waits for accepted changes; the cluster may have lost its majority."""

log = logging.getLogger(__name__)


class Nameserver:
    """Holds the metadata role's parts together, and runs them; made by `open`. Implements `ports.Statistics`."""

    def __init__(
        self,
        beginning: Beginning,
        randomness: random.Random,
        config: NameserverConfig,
        facts: Facts,
        supervision: Supervision | None = None,
        condition: Callable[[], Condition] = Condition,
    ) -> None:
        self._config = config
        self._facts = facts
        self.directory = directory = beginning.directory
        self._link = link = beginning.link
        self._start_check = beginning.start_check
        self.replica = replica = directory.replica
        ids = Ids(randomness)
        ports = link.ports if link is not None else None
        sleep = ports.sleep if ports is not None else asyncio.sleep
        wait_seconds_max = config.change_wait_ms_max / 1000
        self.quorum = quorum = MetadataQuorum(
            RaftConfig(
                node_id=member_id(config.node_id),
                election_ticks=config.election_ticks,
                heartbeat_ticks=config.heartbeat_ticks,
            ),
            MemberStart(
                directory.quorum_log(),
                directory.memberships(beginning.first),
                directory.vote,
                beginning.abstains_to,
            ),
            directory.log,
            directory.owned_vote_file,
            replica,
            randomness,
            None if ports is None else _outside(ports, config.tick_ms / 1000),
        )
        """Drives this node's member of the metadata quorum."""
        clock_ms = ports.clock.now_ms if ports is not None else _now_ms
        self._sleep = sleep
        self._monotonic = ports.clock.monotonic if ports is not None else time.monotonic
        self.proposer = Proposer(quorum, replica, clock_ms, config.changes_waiting_max)
        self._leaders = WriteGroupLeaders()
        self._loads = NodeLoads(config.node_id, self._monotonic)
        self.recent_moves = RecentMoves(self._monotonic)
        self.heartbeats: Heartbeats | None = None
        if ports is not None:
            thresholds = Thresholds(config.suspect_ms / 1000, config.refused_ms / 1000, config.dead_ms / 1000)
            self.heartbeats = Heartbeats(
                config.node_id, quorum, replica, self._leaders, ports, config.heartbeat_ms / 1000, thresholds,
                self._loads, condition,
            )  # fmt: skip
        self._raising = LevelRaising(quorum, replica, self.proposer, config.node_id, self.heartbeats, sleep)
        self._requests = requests = Requests(
            quorum, self.proposer, replica, ids, ports, wait_seconds_max, config.replication_factor,
            Admission(replica, self._raising, self.heartbeats, quorum).check, self.recent_moves,
        )  # fmt: skip
        self._duties = LeaderDuties(
            quorum, replica, self.proposer, requests,
            partial(self._new_cluster_id, ids), config.write_groups, self._raising,
            config.replication_factor, config.storage_nodes_min, member_id,
        )  # fmt: skip
        self.lookups = MetadataLookups(
            replica, config, quorum, self._leaders, self.heartbeats, *([] if ports is None else [ports.cut_off])
        )
        self.administration = MetadataAdministration(requests, replica, ids, config)
        self.operations = ClusterOperations(requests, self.lookups, replica, quorum, ports)
        self._follower = None if ports is None else Follower(quorum, replica, ports)
        self.waits = MetadataWaits(quorum, replica, sleep, wait_seconds_max, ports, self._follower)
        self.quorum_positions = QuorumPositions(
            config.node_id, quorum, replica, self.heartbeats, ports,
            clock_ms, self._monotonic, sleep, wait_seconds_max,
        )  # fmt: skip
        self.acl_administration = AclAdministration(requests, self.waits.current)
        self.quota_administration = QuotaAdministration(self.lookups, requests, self.waits.current)
        self.config_administration = ConfigAdministration(self.lookups, requests, replica)
        self.token_administration = TokenAdministration(self.lookups, requests, self.waits.current)
        self._token_expiry = TokenExpiry(
            self.lookups, self.token_administration, sleep, clock_ms, config.token_expiry_check_ms / 1000
        )
        self.registration = Registration(requests, replica, quorum, facts, self.incarnation)
        if link is not None and self.heartbeats is not None:
            link.introducer.quorum_begins(quorum)
            self._connect(link.ports, self.heartbeats)
        self.supervision = supervision or Supervision()
        replica.subscribe(self._ends_when_removed)
        self.task = asyncio.create_task(self._run(), name="metadata")
        """The task that all others run in. Cancelled from outside, the metadata stops where it is, as when
        its process dies."""

    def credentials(self, random_bytes: Callable[[int], bytes]) -> MetadataCredentials:
        """The users of the cluster, for its brokers. `random_bytes`: unpredictable ones, as many as asked for."""
        return MetadataCredentials(self.lookups, self._requests, random_bytes)

    def ask_about(self, clients: ForwardedClients) -> None:
        """Changes that other nodes want for their clients are refused, and told of, as `clients` says."""
        self._requests.clients = clients

    def draining(self, standings: Callable[[], Awaitable[Standings]]) -> Draining:
        """Empties drained and lost nodes, when it is run. `standings` asks the leaders of the write groups."""
        return Draining(
            self.quorum, self.replica, self.proposer, self._requests, self.lookups,
            self.operations.change_member, standings, self._sleep, self._monotonic, max(1, len(self._config.peers)),
            self._config.rebuild_after_seconds,
        )  # fmt: skip

    def balance_planner(
        self,
        takers: Callable[[], list[int]],
        leader_of: Callable[[int], int],
        told: Callable[[], Awaitable[ToldFacts]],
    ) -> BalancePlanner:
        """Plans how load should be spread. `takers`: as `Draining.takers`; `told` asks all nodes."""
        return BalancePlanner(
            self.lookups, takers, leader_of, told, self._refusal_of_shift, self._config.room_percent_min
        )

    async def _refusal_of_shift(self, shift: QueueShift) -> str:
        topic, partition = self.lookups.topic_by_number(topic_number_of(shift.queue_id)), partition_of(shift.queue_id)
        if topic is None or partition >= topic.partitions:
            return "the queue has gone"
        if why := self._asked_for_only(shift):
            return why
        return await self._requests.refusal(WantSlotMove(topic.name, partition, shift.new))

    def _asked_for_only(self, shift: QueueShift) -> str:
        """Why a queue moves only if somebody asks for that: its slot has one of a coordinator, or one that keeps
        records in both write groups for good. A slot with the latter moves once by itself at the most, and to nodes
        that have both."""
        moving, topics = self.lookups.moving_slots, self.lookups.topics()
        if moving.level_of(shift.slot, topics) >= FeatureLevel.COORDINATED:
            return f"coordinators in write group {shift.new} would load anew"
        if not moving.kept_in(shift.slot, topics):
            return ""
        if shift.copies:
            return f"nodes of write group {shift.new} would follow write group {shift.old} for good"
        return "it has moved, and what it had before stays there" if shift.slot in moving.others else ""

    def balancer(self, planner: BalancePlanner, takers: Callable[[], list[int]]) -> Balancer:
        """Begins by itself what is planned, when it is run."""
        config = self._config
        settings = BalancerSettings(
            config.balance, config.balance_seconds, config.balance_moves_per_hour, config.balance_rest_seconds
        )
        return Balancer(
            settings, planner, self.quorum, self.proposer, self._requests, self.lookups, takers, self._sleep,
            self._monotonic,
        )  # fmt: skip

    @classmethod
    async def open(
        cls,
        files: Files,
        randomness: random.Random,
        config: NameserverConfig,
        node: Node,
        connect: Connect | None = None,
        facts: Facts = NO_FACTS,
        starts: StartsFile | None = None,
        supervision: Supervision | None = None,
        condition: Callable[[], Condition] = Condition,
    ) -> Nameserver:
        """Recover the metadata below `files`, or create the cluster where the directory is empty, and
        register `node`. Open it before the journal. With peers it takes `connect`, and waits for a majority
        of them. `starts`, which has begun, is shown to the others before anything else; `condition` is asked for the
        state of this node's disks before each heartbeat. Raises `ForeignDirectory`, `UnreadableFeatureLevel`,
        `MetadataCorrupt`, `NodeIdTaken`, `rpc.errors.IdentityRefused`, OSError."""
        assert node.node_id == config.node_id, "a node registers itself"
        assert connect is not None or not config.peers, "nodes of a cluster are connected"
        directory = await open_directory(files, config, facts.levels)
        try:
            beginning = await begin(directory, randomness, config, connect, facts, starts)
            nameserver = cls(beginning, randomness, config, facts, supervision, condition)
        except BaseException:
            await directory.close()
            raise
        try:
            await nameserver.waits.until(lambda: nameserver.replica.state.cluster is not None)
            if connect is None:
                await nameserver.waits.until(lambda: nameserver.quorum.serves)
            if directory.holds_messages_alone:
                await nameserver.registration.check_directory(node.node_id, nameserver.waits.current)
            await nameserver.registration.register_at_last(node)
            if connect is None:
                await nameserver.waits.placed()
        except BaseException:
            await nameserver.close()
            raise
        return nameserver

    def _ends_when_removed(self, event: Event) -> None:
        if isinstance(event, NodeRemoved) and event.node_id == self._config.node_id:
            self.supervision.died("membership of the cluster", NodeWasRemoved(removed_text(event.node_id)))

    def _connect(self, ports: ClusterPorts, heartbeats: Heartbeats) -> None:
        """From now on this node talks to the others, and answers them."""
        config = self._config
        Service(self.quorum, self.replica, self._requests, heartbeats, Transfer(self.quorum, ports), ports)
        ports.exchange.join(METADATA_QUORUM, QuorumMember(self.quorum))
        self.replica.subscribe(partial(_know, ports, config.node_id))
        for node in self.replica.state.node_table.registered.values():
            _know(ports, config.node_id, NodeRegistered(node))

    async def close(self) -> None:
        """Finish the accepted changes, and close the log."""
        self.proposer.refuse("the node is stopping and takes no more changes of the metadata")
        try:
            async with asyncio.timeout(None if self._link is None else STOP_SECONDS_MAX):
                await self.proposer.ended.wait()
        except TimeoutError:
            log.warning("changes of the metadata that nobody confirmed are left to the other nodes")
        await self._hand_over()
        await self._say_farewell()
        if self._link is not None:
            self._link.ports.exchange.leave(METADATA_QUORUM)
        self.task.cancel()
        await asyncio.wait([self.task])
        try:
            await self.quorum.remember_commit()
        except MetadataUnavailable as error:
            log.warning("the next start applies less of the metadata before it has a leader: %s", error)
        finally:
            await self.directory.close()

    async def _hand_over(self) -> None:
        """A leader that stops first has another voter lead, which is sooner than an election."""
        others = [
            node_id
            for node_id in sorted(self.quorum.membership.voters - {self.quorum.node_id})
            if self.lookups.verdict(node_id).state is NodeState.ALIVE
        ]
        if not self.quorum.serves or not others:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                self.quorum.transfer_leadership(others[0])
                while self.quorum.leader_id in (0, self.quorum.node_id) and self.quorum.failure is None:
                    await self.quorum.changed_since(self.quorum.version)
        except (TimeoutError, RaftError) as error:
            log.info("node %d does not lead the metadata yet: %s", others[0], error or "no answer")

    async def _say_farewell(self) -> None:
        if self.heartbeats is None or self.quorum.serves:
            return
        try:
            await self.heartbeats.leave()
        except TimeoutError:
            log.info("the metadata leader did not take this node's farewell")

    def give_way(self) -> None:
        """This node cannot go on: if it leads, have the voter lead that lacks the fewest entries."""
        self.quorum.give_way()

    @property
    def incarnation(self) -> bytes:
        """16 bytes that tell this node's directory from any other."""
        return self.directory.owned_vote_file.owner.identity

    @property
    def failure(self) -> Exception | None:
        """Why this node's metadata takes no more changes; None while it does."""
        return self.quorum.failure

    @property
    def waits_for_room(self) -> bool:
        """Whether the metadata waits for room on the disk."""
        return self.quorum.waits_for_room

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every change from now on, after it was applied here and before its caller
        hears of it. It must not block."""
        self.replica.subscribe(listener)

    def learned_leader(self, group: int, node_id: int, term: int) -> None:
        """The storage role names a write group's leader; the other nodes hear of it within a second."""
        if self._leaders.learn(group, node_id, term) and self.heartbeats is not None:
            self.heartbeats.beat_now()

    def share_quotas(self, user: QuotaUser) -> None:
        """From now on this node's broker tells the leader what its clients use of quotas, and hears its parts."""
        if self.heartbeats is not None:
            self.heartbeats.quota_user = user

    def measure_disk(self, measure: Callable[[], tuple[float, Collection[str]]]) -> None:
        """From now on this node tells the others the pressure on its disk 1, and which tenants have filled it."""
        if self.heartbeats is not None:
            self.heartbeats.disk_pressures.measure = measure

    def measure_load(self, measure: Callable[[], ToldLoad]) -> None:
        """From now on this node tells the metadata leader its load."""
        self._loads.measure = measure

    def loads(self) -> ToldLoads | None:
        """The loads of all nodes; None: this node does not lead the metadata."""
        return self._loads.told(self.quorum.term) if self.quorum.serves else None

    def when_found_late(self, listener: Callable[[OldCopy], None]) -> None:
        """Call `listener` if this node learns only after it has spoken that it runs on an older copy of its
        directories; at once if it has learned it already."""
        if self._start_check is not None:
            self._start_check.found_late.add_done_callback(lambda found: listener(found.result()))

    @property
    def others(self) -> ClusterPorts | None:
        """The calls and messages to the other nodes; None: there are none."""
        return self._link.ports if self._link is not None else None

    def samples(self) -> Iterable[Sample]:
        yield Sample("mainstem_topics", "gauge", "Topics in the cluster", len(self.replica.state.topics))
        yield Sample("mainstem_partitions", "gauge", "Partitions in the cluster", self.replica.state.partitions_total)
        yield Sample("mainstem_nodes", "gauge", "Nodes in the cluster", len(self.replica.state.nodes))
        for result, count in (
            ("applied", self.replica.applied_count),
            ("refused", self.proposer.refused_count),
        ):
            yield Sample(
                "mainstem_metadata_changes_total",
                "counter",
                "Changes to the metadata asked for",
                count,
                (("result", result),),
            )
        yield Sample(
            "mainstem_feature_level", "gauge", "What the cluster may write", int(self.replica.state.feature_level)
        )
        yield Sample(
            "mainstem_feature_level_newest", "gauge", "What this node could write", int(self._facts.levels.newest)
        )
        snapshots = self.quorum.snapshots.tried
        yield Sample("mainstem_metadata_snapshots_total", "counter", "Snapshots tried", snapshots)
        yield Sample("mainstem_metadata_log_bytes", "gauge", "Length of the metadata log", self.directory.log.length)
        yield Sample("mainstem_metadata_term", "gauge", "Term of the metadata quorum", self.quorum.term)
        yield Sample(
            "mainstem_metadata_waits_for_room", "gauge", "1 while disk 1 has no room for changes of the metadata",
            int(self.quorum.waits_for_room))  # fmt: skip

    async def _run(self) -> None:
        """Run all background tasks."""
        try:
            async with asyncio.TaskGroup() as tasks:

                def look_after(part: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
                    """Supervise a part that an error cannot leave half done: after a fault that part alone
                    begins again."""
                    tasks.create_task(self.supervision.keep(part, name), name=name)

                tasks.create_task(self.quorum.run(), name="metadata quorum")
                tasks.create_task(self.proposer.run(), name="metadata writer")
                look_after(self._duties.run, "metadata leader's duties")
                look_after(self._token_expiry.run, "expired tokens")
                look_after(self._say_more, "metadata registration")
                if self._config.feature_level == "automatic":
                    look_after(self._raising.run, "metadata feature level")
                if self._link is not None and self.heartbeats is not None and self._follower is not None:
                    look_after(self.heartbeats.run, "metadata heartbeats")
                    look_after(self._follower.run, "metadata follower")
                    look_after(Standing(self.quorum, self._link.ports).run, "metadata standing")
                if self._start_check is not None:
                    tasks.create_task(self._start_check.run(), name="metadata start check")
                    tasks.create_task(self._got_back(self._start_check.starts), name="metadata got back")
        except Exception as group:
            failure = first_of(group)
            log.error("the metadata takes no more changes: %s", self.quorum.failure or failure)
            log.debug("how that came", exc_info=failure)
            self.quorum.fail(failure)
            if is_of_disk(failure):
                self.supervision.disk_failed(str(failure))
            elif not isinstance(failure, FORESEEN):
                self.supervision.died("metadata", failure)

    async def _say_more(self) -> None:
        """Register again where the first time came before a feature level at which more is said."""
        try:
            for level in (FeatureLevel.SECURED, FeatureLevel.ELASTIC):
                await self.waits.until(partial(self.registration.may_say_more_at, level))
                node = self.registration.node
                if node is not None:
                    await self.registration.register_at_last(node)
        except MetadataUnavailable:
            return  # the metadata has failed, which others tell

    async def _got_back(self, starts: StartsFile) -> None:
        while self.quorum.abstains:
            await self.quorum.changed_since(self.quorum.version)
        await starts.got_back(METADATA_QUORUM)

    def _new_cluster_id(self, ids: Ids) -> str:
        if self._link is not None:
            return self._link.identity.cluster_id
        return self._config.cluster_id or ids.cluster_id()


def _outside(ports: ClusterPorts, tick_seconds: float) -> Outside:
    return Outside(
        partial(ports.exchange.send, METADATA_QUORUM), partial(offer_snapshot, ports), tick_seconds, ports.sleep
    )


def _know(ports: ClusterPorts, own: int, event: Event) -> None:
    if isinstance(event, NodeRegistered) and event.node.rpc and event.node.node_id != own:
        ports.calls.know(event.node.node_id, event.node.rpc)


FORESEEN = (NameserverError, BrokenInvariant)
"""Failures of the metadata that a new start would only meet again, or whose message names the remedy: the
node stays up, and reports them in `/readyz`."""


def first_of(error: Exception) -> Exception:
    """The error that ended a group of tasks, taken out of the exception groups around it."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
