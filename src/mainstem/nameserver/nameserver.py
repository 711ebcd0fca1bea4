"""The nameserver of a node: answers about the metadata at once, changes it one command at a time.

Strategy: the metadata is the state machine of a Raft group, of one member or several. Lookups read this node's replica
in memory and never wait (`lookups`). A change is made by the leader's one writer (`proposer`): from what is wanted
(`changes`) to commands, checked, logged, applied on every member, and those who follow told; other nodes ask it
(`requests`). One member drives the group's core (`metadata_group`) over its log on disk (`metadata_log`,
`vote_file`). Who lives and who leads which write group is soft state beside it (`heartbeats`).

Invariants: what a caller is told has happened is on the disks of a majority and applied on the caller's node; state
in memory equals the log replayed; a topic number is never reused; messages are never deleted here, and a directory that
holds messages but no metadata is refused rather than taken for a new one (topic numbers would start anew and
meet the old messages).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from mainstem.model import FeatureLevel, LevelRange, Node, Sample
from mainstem.nameserver import bootstrap
from mainstem.nameserver.administration import MetadataAdministration
from mainstem.nameserver.changes import Ids, registration_of
from mainstem.nameserver.cluster_ports import NO_FACTS, ClusterPorts, Connect, Facts
from mainstem.nameserver.commands import Event, NodeRegistered
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.directory import Directory, member_id, open_directory
from mainstem.nameserver.errors import (
    FeatureLevelNotReady,
    ForeignDirectory,
    InvalidMembership,
    MetadataUnavailable,
    NameserverError,
    NodeIdTaken,
    refusal_of,
)
from mainstem.nameserver.feature_level import check_levels_of, check_own_levels
from mainstem.nameserver.follow import Follower
from mainstem.nameserver.heartbeats import Condition, Heartbeats
from mainstem.nameserver.leader_duties import LeaderDuties
from mainstem.nameserver.level_raising import LevelRaising
from mainstem.nameserver.liveness import Report, State, Thresholds, Verdict
from mainstem.nameserver.member import GroupMember
from mainstem.nameserver.member_change import CATCH_UP_SECONDS_MAX, change_member
from mainstem.nameserver.metadata_files import VOTE
from mainstem.nameserver.metadata_group import MetadataGroup, Outside, Started
from mainstem.nameserver.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.replica import Listener
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.service import Introducer, Service
from mainstem.nameserver.standing import Standing
from mainstem.nameserver.start_check import OldCopy, StartCheck, come_back
from mainstem.nameserver.starts_file import StartsFile
from mainstem.nameserver.transfer import Transfer
from mainstem.nameserver.vote_file import STAMP_BYTES, Vote
from mainstem.ports import Files
from mainstem.raft import Membership, RaftConfig, RaftError
from mainstem.rpc.errors import RpcError
from mainstem.rpc.identity import Identity
from mainstem.rpc.metadata import CHANGE_MEMBER, ChangeMember, Wanted, WantFeatureLevel, WantNode
from mainstem.rpc.raft_member import METADATA_GROUP

STOP_SECONDS_MAX = 2.0
"""How long a stop waits for changes that were accepted; the cluster may not have a majority any more."""
READ_SECONDS_MAX = 1.0
"""A read whose message was lost is asked for again."""
PAUSE_SECONDS = 0.1

log = logging.getLogger(__name__)


class Link(NamedTuple):
    """What a nameserver has where there may be others."""

    identity: Identity
    ports: ClusterPorts
    introducer: Introducer


class Nameserver(MetadataAdministration):
    """Made by `open`. Implements `ports.Metadata`, `ports.MetadataAdmin` and `ports.Statistics`."""

    def __init__(
        self,
        directory: Directory,
        first: Membership,
        randomness: random.Random,
        config: NameserverConfig,
        link: Link | None,
        facts: Facts,
        start_check: StartCheck | None = None,
        abstains_to: int = 0,
    ) -> None:
        super().__init__(directory.replica, config)
        self._directory = directory
        self._link = link
        self._start_check = start_check
        self._facts = facts
        self._ids = Ids(randomness)
        self._producer_ids_lock = asyncio.Lock()
        self._group = MetadataGroup(
            RaftConfig(
                node_id=member_id(config.node_id),
                election_ticks=config.election_ticks,
                heartbeat_ticks=config.heartbeat_ticks,
            ),
            Started(directory.group_log(), directory.memberships(first), directory.vote, abstains_to),
            directory.log,
            directory.owned_vote_file,
            directory.replica,
            randomness,
        )
        ports = link.ports if link is not None else None
        clock_ms = ports.clock.now_ms if ports is not None else _now_ms
        self._proposer = Proposer(self._group, directory.replica, clock_ms, config.changes_waiting_max)
        self._requests = Requests(
            self._group, self._proposer, directory.replica, self._ids, ports,
            config.change_wait_ms_max / 1000, config.replication_factor, self._check_wanted,
        )  # fmt: skip
        self._raising = LevelRaising(
            self._group, directory.replica, self._proposer, config.node_id,
            lambda: self._heartbeats, ports.sleep if ports is not None else asyncio.sleep,
        )  # fmt: skip
        self._duties = LeaderDuties(
            self._group, directory.replica, self._proposer, self._requests,
            self._new_cluster_id, config.write_groups, self._raising,
        )  # fmt: skip
        self._heartbeats: Heartbeats | None = None
        if link is not None:
            self._heartbeats = self._connect(link)
        self._task = asyncio.create_task(self._run(), name="metadata")

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
    ) -> Nameserver:
        """Recover the metadata below `files`, or create the cluster where there is nothing at all yet, and
        register `node`. Open it before the journal. With peers it takes `connect`, and waits for a majority of
        them. `starts`, which has begun, is shown to the others before anything else. Raises `ForeignDirectory`,
        `UnreadableFeatureLevel`, `MetadataCorrupt`, `NodeIdTaken`,
        `rpc.errors.IdentityRefused`, OSError."""
        assert node.node_id == config.node_id, "a node registers itself"
        assert connect is not None or not config.peers, "nodes of a cluster are connected"
        directory = await open_directory(files, config, facts.levels)
        try:
            nameserver = await cls._opened(directory, randomness, config, connect, facts, starts)
        except BaseException:
            await directory.close()
            raise
        try:
            await nameserver._until(lambda: nameserver._state.cluster is not None)
            if connect is None:
                await nameserver._until(lambda: nameserver._group.serves)
            await nameserver._registered(node)
            if connect is None:
                await nameserver.placed()
        except BaseException:
            await nameserver.close()
            raise
        return nameserver

    @classmethod
    async def _opened(
        cls,
        directory: Directory,
        randomness: random.Random,
        config: NameserverConfig,
        connect: Connect | None,
        facts: Facts,
        starts: StartsFile | None,
    ) -> Nameserver:
        node_id, peers = config.node_id, config.peer_addresses
        me = Membership.of([member_id(node_id)])
        first = me if directory.found.version_1 or not peers else Membership.of(peers)
        members = directory.memberships(first)[-1].membership.members
        if connect is None and members != me.members:
            raise ForeignDirectory(
                f"the directory belongs to a cluster of nodes {', '.join(map(str, sorted(members)))}; "
                f"give their addresses (nameserver.peers)"
            )
        await directory.apply_committed(all_of_it=members == me.members)
        check_own_levels(directory.replica.state.feature_level, facts.levels)
        _check_owner(directory, config)
        new = directory.new
        owner = await directory.take(node_id, Ids(randomness))
        link = start_check = None
        abstains_to = 0
        if connect is not None:
            cluster_id = directory.cluster_id() or config.cluster_id or bootstrap.cluster_id_of(peers)
            identity = Identity(cluster_id, node_id, owner.identity)
            ports = await connect(identity)
            for peer, address in peers.items():
                if peer != node_id:
                    ports.calls.know(peer, address)
            link = Link(identity, ports, Introducer(node_id, directory.replica, ports.handlers))
            if new and peers:
                first = await bootstrap.first_members(identity, peers, ports, facts.levels)
            if starts is not None:
                placed = {node for replicas in directory.replica.state.placements.values() for node in replicas}
                directory.alone_from = await starts.alone_from(METADATA_GROUP, directory.found.last_index)
                directory.alone = me
                voters = directory.memberships(first)[-1].membership.voters
                if directory.alone_from is not None and voters == me.voters:
                    placed = set()  # nobody is left to ask
                start_check = StartCheck(node_id, starts, ports)
                await start_check.check_vote(directory.owned_vote_file.written_in)
                await start_check.before_all(voters | placed)
                if starts.has_lost(METADATA_GROUP):
                    abstains_to = await _come_back(directory, node_id, voters, ports)
                directory.owned_vote_file.stamp = starts.nonce[:STAMP_BYTES]
                await directory.owned_vote_file.write(directory.vote)
                await starts.wrote(VOTE)
        await directory.start(first)
        return cls(directory, first, randomness, config, link, facts, start_check, abstains_to)

    async def close(self) -> None:
        """Finish the changes that were accepted, and let go of the log."""
        self._proposer.refuse("the node is stopping and takes no more changes of the metadata")
        try:
            async with asyncio.timeout(None if self._link is None else STOP_SECONDS_MAX):
                await self._proposer.ended.wait()
        except TimeoutError:
            log.warning("changes of the metadata that nobody confirmed are left to the other nodes")
        await self._hand_over()
        await self._say_farewell()
        if self._link is not None:
            self._link.ports.exchange.leave(METADATA_GROUP)
        self._task.cancel()
        await asyncio.wait([self._task])
        try:
            await self._group.remember_commit()
        except MetadataUnavailable as error:
            log.warning("the next start applies less of the metadata before it has a leader: %s", error)
        finally:
            await self._directory.close()

    async def _hand_over(self) -> None:
        """A leader that stops has another voter lead first: sooner than an election would."""
        others = [
            node_id
            for node_id in sorted(self._group.membership.voters - {self._group.node_id})
            if self.verdict(node_id).state is State.ALIVE
        ]
        if not self._group.serves or not others:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                self._group.transfer_leadership(others[0])
                while self._group.leader_id in (0, self._group.node_id):
                    await self._group.changed_since(self._group.version)
        except (TimeoutError, RaftError) as error:
            log.info("node %d does not lead the metadata yet: %s", others[0], error or "no answer")

    async def _say_farewell(self) -> None:
        if self._heartbeats is None or self._group.serves or self._group.failure is not None:
            return
        try:
            await self._heartbeats.leave()
        except TimeoutError:
            log.info("the metadata leader did not take this node's farewell")

    # what nodes tell

    @property
    def incarnation(self) -> bytes:
        """16 bytes that tell this node's directory from any other."""
        return self._directory.owned_vote_file.owner.identity

    @property
    def failure(self) -> Exception | None:
        """Why this node's metadata takes no more changes; None while it does."""
        return self._group.failure

    @property
    def metadata_leader(self) -> int:
        """The node id of the metadata group's leader, as far as this node knows; -1: nobody."""
        if self._group.leader_id == self._group.node_id:
            return self._config.node_id
        return self._group.leader_id or -1

    @property
    def out_of_touch(self) -> bool:
        return self._heartbeats is not None and self._heartbeats.out_of_touch

    @property
    def metadata_voters(self) -> frozenset[int]:
        """The nodes that vote in the metadata group, as far as this node knows."""
        return self._group.membership.voters

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every change from now on, after it was applied here and before the one
        who asked for it hears of it. It must not block."""
        self._replica.subscribe(listener)

    def learned_leader(self, group: int, node_id: int, term: int) -> None:
        """The storage role knows who leads a write group; the other nodes hear of it within a second."""
        if self._leaders.learn(group, node_id, term) and self._heartbeats is not None:
            self._heartbeats.beat_now()

    def when_found_late(self, listener: Callable[[OldCopy], None]) -> None:
        """Call `listener` if it turns out, after this node has spoken, that it runs on an older copy of its
        directories."""
        if self._start_check is not None:
            self._start_check.found_late = listener

    def report_condition(self, condition: Callable[[], Condition]) -> None:
        """How the node's disks are, asked before each heartbeat."""
        if self._heartbeats is not None:
            self._heartbeats.condition = condition

    def report(self, node_id: int) -> Report | None:
        """What a node said of itself in its last heartbeat; None: unknown, as it is on all nodes but the metadata
        leader."""
        if self._heartbeats is None or not self._group.serves:
            return None
        return self._heartbeats.liveness().report(node_id)

    async def current(self) -> None:
        """Until this node has applied all that was committed before the call: lookups then answer as the leader would
        have. Raises `MetadataUnavailable`."""
        reason = "no leader of the metadata group is known"
        sleep = asyncio.sleep if self._link is None else self._link.ports.sleep
        try:
            async with asyncio.timeout(self._config.change_wait_ms_max / 1000):
                while True:
                    try:
                        async with asyncio.timeout(READ_SECONDS_MAX):
                            return await self._group.read()
                    except TimeoutError:
                        reason = "the leader of the metadata group does not answer"
                    except MetadataUnavailable as error:
                        reason = str(error)
                        if self._group.failure is not None:
                            raise
                    await sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise MetadataUnavailable(
                f"the metadata cannot be read safely now: {reason}; try again"
            ) from None

    async def deleted(self, topic_numbers: Sequence[int]) -> None:
        """Until this node has heard that the topics of these numbers are deleted. Raises `MetadataUnavailable`."""
        await self._until(lambda: all(map(self._state.was_deleted, topic_numbers)))

    async def placed(self) -> Mapping[int, tuple[int, ...]]:
        """`placements`, once the write groups are placed: when as many nodes have registered as the first quorum has.
        Raises `MetadataUnavailable`."""
        await self._until(lambda: bool(self._state.placements))
        return self.placements()

    async def register(self, node: Node) -> None:
        """Note the addresses of this node; no change is logged when they are those known. Raises `NodeIdTaken`,
        `MetadataUnavailable`."""
        facts = self._facts
        wanted = WantNode(
            node_id=node.node_id,
            host=node.host,
            port=node.port,
            rack=node.rack,
            rpc=facts.rpc,
            incarnation=self.incarnation,
            roles=list(facts.roles),
            version=facts.version,
            level_oldest=facts.levels.oldest,
            level_newest=facts.levels.newest,
        )
        if self._state.registered(node.node_id) == registration_of(wanted):
            return
        (outcome,) = (await self._requests.change(wanted)).items
        if isinstance(outcome, NameserverError):
            raise outcome

    async def raise_feature_level(self, level: int) -> None:
        """From now on the cluster may write what programs of this level read; there is no way back. Raises
        `FeatureLevelNotReady` naming the nodes that do not read it, `MetadataUnavailable`."""
        (outcome,) = (await self._requests.change(WantFeatureLevel(level))).items
        if isinstance(outcome, NameserverError):
            raise outcome

    async def change_member(self, old: int, new: int) -> None:
        """Replace voter `old` of the metadata group by node `new`, which is registered and runs; 0 for none. Raises
        `InvalidMembership`, `MetadataUnavailable`."""
        if self._link is None:
            raise InvalidMembership("this node is a cluster of its own: it takes nameserver.peers to be more")
        ports = self._link.ports
        try:
            if self._group.serves:
                await change_member(self._group, self._replica, ports, old, new)
                return
            reply = await ports.calls.call(
                self._group.whom_to_ask(),
                CHANGE_MEMBER,
                ChangeMember(old, new),
                timeout_seconds=CATCH_UP_SECONDS_MAX,
            )
        except (NotLeading, Unsettled, RpcError) as error:
            self._group.asked_in_vain()
            raise MetadataUnavailable(
                f"the change of members may not be done: {error}; begin it again"
            ) from error
        for refusal in reply.message.refusals:
            raise refusal_of(refusal.kind, refusal.message)

    def samples(self) -> Iterable[Sample]:
        yield Sample("mainstem_topics", "gauge", "Topics in the cluster", len(self._state.topics))
        yield Sample(
            "mainstem_partitions", "gauge", "Partitions in the cluster", self._state.partitions_total
        )
        yield Sample("mainstem_nodes", "gauge", "Nodes in the cluster", len(self._state.nodes))
        for result, count in (
            ("applied", self._replica.applied_count),
            ("refused", self._proposer.refused_count),
        ):
            yield Sample(
                "mainstem_metadata_changes_total",
                "counter",
                "Changes to the metadata asked for",
                count,
                (("result", result),),
            )
        yield Sample(
            "mainstem_feature_level", "gauge", "What the cluster may write", int(self._state.feature_level)
        )
        yield Sample(
            "mainstem_feature_level_newest", "gauge", "What this node could write", int(self._facts.levels.newest)
        )
        snapshots = self._group.snapshots.tried
        yield Sample("mainstem_metadata_snapshots_total", "counter", "Snapshots tried", snapshots)
        yield Sample(
            "mainstem_metadata_log_bytes", "gauge", "Length of the metadata log", self._directory.log.length
        )
        yield Sample("mainstem_metadata_term", "gauge", "Term of the metadata group", self._group.term)
        yield Sample(
            "mainstem_metadata_waits_for_room", "gauge", "1 while disk 1 has no room for changes of the metadata",
            int(self._group.waits_for_room))  # fmt: skip

    def quorum_times(self) -> list[int | None] | None:
        """What the clocks of the metadata quorum say now, in ms, None for one that was not heard lately; None: this
        node is alone, or a member is of a version that says nothing of its clock."""
        if self._heartbeats is None or self.feature_level < FeatureLevel.HARDENED:
            return None
        return self._heartbeats.quorum_times()

    # inside

    def _verdicts(self) -> Mapping[int, Verdict]:
        return self._heartbeats.verdicts if self._heartbeats is not None else {}

    def _connect(self, link: Link) -> Heartbeats:
        config, ports = self._config, link.ports
        transfer = Transfer(self._group, ports)
        self._group.outside = Outside(
            partial(ports.exchange.send, METADATA_GROUP), transfer.send, config.tick_ms / 1000, ports.sleep
        )
        thresholds = Thresholds(config.suspect_ms / 1000, config.refused_ms / 1000, config.dead_ms / 1000)
        heartbeats = Heartbeats(
            config.node_id,
            self._group,
            self._replica,
            self._leaders,
            ports,
            config.heartbeat_ms / 1000,
            thresholds,
        )
        link.introducer.group = self._group
        Service(self._group, self._replica, self._requests, heartbeats, transfer, ports)
        ports.exchange.join(METADATA_GROUP, GroupMember(self._group))
        self._replica.subscribe(partial(_know, ports, config.node_id))
        for node in self._state.node_table.registered.values():
            _know(ports, config.node_id, NodeRegistered(node))
        return heartbeats

    async def _run(self) -> None:
        """Everything that goes on in the background."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._group.run(), name="metadata group")
                tasks.create_task(self._proposer.run(), name="metadata writer")
                tasks.create_task(self._duties.run(), name="metadata leader's duties")
                if self._config.feature_level == "automatic":
                    tasks.create_task(self._raising.run(), name="metadata feature level")
                if self._link is not None and self._heartbeats is not None:
                    tasks.create_task(self._heartbeats.run(), name="metadata heartbeats")
                    follower = Follower(self._group, self._replica, self._link.ports)
                    tasks.create_task(follower.run(), name="metadata follower")
                    standing = Standing(self._group, self._link.ports)
                    tasks.create_task(standing.run(), name="metadata standing")
                if self._start_check is not None:
                    tasks.create_task(self._start_check.run(), name="metadata start check")
                    tasks.create_task(self._got_back(self._start_check.starts), name="metadata got back")
        except Exception as group:
            failure = first_of(group)
            log.error("the metadata takes no more changes: %s", self._group.failure or failure)
            log.debug("how that came", exc_info=failure)
            self._group.fail(failure)

    async def _got_back(self, starts: StartsFile) -> None:
        while self._group.abstains:
            await self._group.changed_since(self._group.version)
        await starts.got_back(METADATA_GROUP)

    def _new_cluster_id(self) -> str:
        if self._link is not None:
            return self._link.identity.cluster_id
        return self._config.cluster_id or self._ids.cluster_id()

    async def _registered(self, node: Node) -> None:
        while True:
            try:
                return await self.register(node)
            except MetadataUnavailable as error:
                if self._group.failure is not None:
                    raise
                log.warning("node %d is not registered yet: %s", node.node_id, error)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Raises `MetadataUnavailable` when it cannot come about any more."""
        while not is_so():
            if self._group.failure is not None:
                raise MetadataUnavailable(f"the metadata failed: {self._group.failure}")
            await self._group.changed_since(self._group.version)

    def _check_wanted(self, wanted: Wanted) -> None:
        """The leader refuses a node that another one is, or whose program is too old, and a feature level that a node
        does not read."""
        if isinstance(wanted, WantFeatureLevel) and (against := self._raising.against(wanted.level)):
            raise FeatureLevelNotReady(f"feature level {wanted.level} must wait: {'; '.join(against)}")
        if isinstance(wanted, WantNode):
            levels = LevelRange(wanted.level_oldest, wanted.level_newest)
            check_levels_of(wanted.node_id, levels, self._state.feature_level)
            self._raising.registers(wanted.node_id, levels)
        if not isinstance(wanted, WantNode) or self._heartbeats is None:
            return
        known = self._state.registered(wanted.node_id)
        if known is None or known.incarnation in (b"", wanted.incarnation):
            return
        verdict = self._heartbeats.judged(wanted.node_id)
        if verdict.state is not State.DEAD:
            raise NodeIdTaken(
                f"node {wanted.node_id} runs at {known.rpc or f'{known.host}:{known.port}'} from another directory "
                f"({verdict.reason or 'it is alive'}); give this node another node_id, or stop that one first"
            )


async def _come_back(directory: Directory, node_id: int, voters: Iterable[int], ports: ClusterPorts) -> int:
    """Take up the metadata group again after votes and entries were forgotten; the entry up to which to abstain. Of the
    term of the leader that answered, this node's vote is known: it is the leader's."""
    leader, remembered = await come_back(node_id, voters, ports)
    before = directory.vote
    if before.term < remembered.term or (before.term == remembered.term and before.vote is None):
        await directory.owned_vote_file.write(Vote(remembered.term, leader, before.commit))
    log.info("the metadata is caught up with node %d, up to entry %d, before this node votes", leader, remembered.index)
    return remembered.index


def _know(ports: ClusterPorts, own: int, event: Event) -> None:
    if isinstance(event, NodeRegistered) and event.node.rpc and event.node.node_id != own:
        ports.calls.know(event.node.node_id, event.node.rpc)


def first_of(error: Exception) -> Exception:
    """The error that ended a group of tasks, out of what groups of tasks wrap it in."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _check_owner(directory: Directory, config: NameserverConfig) -> None:
    state = directory.replica.state
    found = directory.cluster_id()
    if found is None:
        return
    if config.cluster_id is not None and config.cluster_id != found:
        raise ForeignDirectory(
            f"the directory belongs to cluster {found}, the configuration says {config.cluster_id}: leave "
            f"nameserver.cluster_id out to go on in {found}, or give a directory that is empty"
        )
    node_ids = [node.node_id for node in state.nodes]
    if directory.found.version_1 and node_ids and config.node_id not in node_ids:
        raise ForeignDirectory(
            f"the directory belongs to node {node_ids[0]} of cluster {found}, "
            f"the configuration says node {config.node_id}: start it as node {node_ids[0]}, or give an empty directory"
        )
