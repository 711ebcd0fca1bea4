"""Nodes tell the metadata leader that they live; it tells them who leads which write group, and which nodes
are dead.

One task per node sends a heartbeat every `heartbeat_seconds`, and at once when this node's own write groups have
news. The nodes' clocks travel the same way (`clocks`), and so do uses and parts of the quotas that nodes share. So
do the nodes' loads (`node_loads`), and how full their disks 1 are (`disk_pressures`). All of it is soft: nothing is
logged, and a new leader begins with what it last heard from the leader before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mainstem.model import LevelRange, NodeRole
from mainstem.nameserver.cluster.clocks import Clocks
from mainstem.nameserver.cluster.disk_pressures import DiskPressures
from mainstem.nameserver.cluster.leaders_asked import LeadersAsked
from mainstem.nameserver.cluster.log_positions import LogPositions
from mainstem.nameserver.cluster.node_liveness import (
    QUICK_SECONDS,
    LivenessVerdict,
    NodeLiveness,
    NodeState,
    Report,
    Thresholds,
)
from mainstem.nameserver.cluster.node_loads import NodeLoads
from mainstem.nameserver.cluster.reach import PROBE_SECONDS_MAX, Reacher, better_connected, helpers_among
from mainstem.nameserver.cluster.write_group_leaders import WriteGroupLeaders
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.raft import RaftError
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.metadata import (
    HEARTBEAT,
    INTRODUCE,
    NODES_PRESSED_MAX,
    REACHED_MAX,
    DiskPressure,
    HeartbeatReply,
    NodeHeartbeat,
    NodeVerdict,
    NotMetadataLeader,
    ToldPart,
    ToldUse,
    WriteGroupLeader,
)
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.security.quotas.sharing import QuotaPart, QuotaSharing, QuotaUse, QuotaUser

DEAD_ASKED_SECONDS = 5.0
"""Between two questions to other nodes about dead ones: a node may have come back where only others hear
it."""

LED_SECONDS_MIN = 3.0
"""A leader hands over to a better connected node only after so long, so that every node had time to be heard
by it."""

LEAVE_SECONDS_MAX = 1.0

log = logging.getLogger(__name__)


class Condition(NamedTuple):
    """The state of this node, as its storage role reports it."""

    disk: str = ""
    lag_bytes: int = 0


class Heartbeats:
    """Sends this node's heartbeats, and judges the others' while this node leads; `run` is the task."""

    def __init__(
        self,
        node_id: int,
        group: MetadataQuorum,
        replica: MetadataReplica,
        leaders: WriteGroupLeaders,
        ports: ClusterPorts,
        heartbeat_seconds: float,
        thresholds: Thresholds,
        loads: NodeLoads,
        condition: Callable[[], Condition] = Condition,
    ) -> None:
        """`condition` is asked for the state of this node's disks before each heartbeat, `loads` for its load."""
        self._condition = condition
        self._loads = loads
        self.verdicts: dict[int, LivenessVerdict] = {}
        """The newest verdicts on nodes that are not well."""
        self._verdicts_term = 0
        self._node_id = node_id
        self._group = group
        self._replica = replica
        self._leaders = leaders
        self._ports = ports
        self._heartbeat_seconds = heartbeat_seconds
        self._thresholds = thresholds
        self._liveness: NodeLiveness | None = None
        self._liveness_term = 0
        self.positions = LogPositions()
        """How far other nodes are, as this node heard while it leads."""
        self.reacher = Reacher(node_id, ports.calls)
        self.leaders_asked = LeadersAsked(leaders, ports.calls)
        self._dead_asked_at = ports.clock.monotonic()
        self._clocks = Clocks(node_id, ports.clock)
        self.disk_pressures = DiskPressures(node_id, ports.clock.monotonic)
        self._now = asyncio.Event()
        self.quota_user: QuotaUser | None = None
        """This node's broker, where the nodes share quotas."""
        self._sharing: QuotaSharing | None = None
        self._touched_at = ports.clock.monotonic()
        """When the metadata leader last answered, or this node led."""

    @property
    def out_of_touch(self) -> bool:
        """Whether this node neither leads nor has heard from the leader for as long as makes a node
        suspected."""
        return self.unheard_seconds() >= self._thresholds.suspect_seconds

    def unheard_seconds(self) -> float:
        """How long ago this node heard from the leader last; 0 while it leads."""
        return 0.0 if self._group.serves else self._ports.clock.monotonic() - self._touched_at

    def beat_now(self) -> None:
        self._now.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pace(), name="metadata heartbeat pace")
            while True:
                await self._now.wait()
                self._now.clear()
                await self._beat()

    async def _pace(self) -> None:
        while True:
            version = self._group.version
            if self._group.serves and len(self._replica.state.node_table.nodes) <= 1:
                await self._group.changed_since(version)  # no leader to hear from
            self._now.set()
            await self._ports.sleep(self._pause_seconds())

    def _pause_seconds(self) -> float:
        """Nodes that hold nothing are to be missed soon: they and the leader beat more often."""
        nodes = self._replica.state.node_table.nodes if self._group.serves else (self._node_id,)
        quick = any(map(self._holds_nothing, nodes))
        return min(QUICK_SECONDS, self._heartbeat_seconds) if quick else self._heartbeat_seconds

    def _holds_nothing(self, node_id: int) -> bool:
        node = self._replica.state.node(node_id)
        if node is None or node.stores or node_id in self._group.membership.members:
            return False
        return NodeRole.BROKER in node.roles

    async def leave(self) -> None:
        """Send the last heartbeat, so that the others need not wait until this node is missed. It must reach
        the leader: a node that does not know the leader, because its metadata failed, asks one voter after
        another."""
        async with asyncio.timeout(LEAVE_SECONDS_MAX):
            if await self._tell(self._group.whom_to_ask(), leaves=True):
                return
            for node_id in sorted(self._group.membership.voters - {self._node_id}):
                if await self._tell(node_id, leaves=True):
                    return

    async def _beat(self) -> None:
        if self._group.serves:
            await self._lead()
        elif not (leader := self._group.whom_to_ask()):
            self._quotas_used()  # this node's parts run out, whether anybody hears of them or not
            await self._ask_who_leads()
        elif not await self._tell(leader):
            self._group.asked_in_vain()
            await self._ask_who_leads()

    async def _ask_who_leads(self) -> None:
        nodes = self._replica.state.node_table.nodes.values()
        stores = [node.node_id for node in nodes if node.stores and node.node_id != self._node_id]
        await self.leaders_asked.ask([it for it in stores if not self._is_dead(it)], self._groups())

    def _is_dead(self, node_id: int) -> bool:
        verdict = self.verdicts.get(node_id)
        return verdict is not None and verdict.state is NodeState.DEAD

    async def _tell(self, leader: int, *, leaves: bool = False) -> bool:
        """Whether the leader heard it; `leader` 0: no node is asked."""
        if leader == 0:
            return False
        condition = self._condition()
        beat = NodeHeartbeat(
            leaders=self._leaders.told(),
            applied=self._replica.applied_index,
            disk=condition.disk,
            lag_bytes=condition.lag_bytes,
            level_oldest=self._replica.levels.oldest,
            level_newest=self._replica.levels.newest,
            leaves=leaves,
            now_ms=max(0, self._ports.clock.now_ms()),
            quotas=[ToldUse(*use) for use in self._quotas_used()],
            load=self._loads.own(),
            disk_pressure=self.disk_pressures.own(),
        )
        try:
            reply = await self._ports.calls.call(
                leader, HEARTBEAT, beat, timeout_seconds=max(1.0, 2 * self._heartbeat_seconds)
            )
        except RpcError as error:
            log.debug("no answer to a heartbeat from node %d: %s", leader, error)
            return False
        self._learn(reply.message)
        return True

    def _learn(self, reply: HeartbeatReply) -> None:
        self._touched_at = self._ports.clock.monotonic()
        self._learn_leaders(reply.leaders)
        self._clocks.learn(reply.clocks)
        self.disk_pressures.learn(reply.disk_pressures)
        if self.quota_user is not None:
            self.quota_user.quotas_parted(QuotaPart(it.quota, it.per_second) for it in reply.quotas)
        if reply.term < self._verdicts_term:
            return
        self._verdicts_term = reply.term
        known = {state.value: state for state in NodeState}
        self.verdicts = {
            it.node: LivenessVerdict(known[it.state], it.reason) for it in reply.verdicts if it.state in known
        }

    def _learn_leaders(self, leaders: Iterable[WriteGroupLeader]) -> bool:
        return self._leaders.learn_all(leaders, self._groups())

    def _groups(self) -> int:
        cluster = self._replica.state.cluster
        return cluster.write_groups if cluster is not None else 0

    def quorum_times(self) -> list[int | None]:
        """The readings of the clocks of the metadata quorum's members now, in ms; None: not heard lately."""
        return [self._clocks.time_of(node_id) for node_id in sorted(self._group.membership.members)]

    # the leader

    def liveness(self) -> NodeLiveness:
        """The liveness of the nodes, as judged under this leadership."""
        if self._liveness is None or self._liveness_term != self._group.term:
            dead = {node: it.reason for node, it in self.verdicts.items() if it.state is NodeState.DEAD}
            dead.pop(self._node_id, None)
            self._liveness = NodeLiveness(self._thresholds, self._ports.clock.monotonic(), dead, self._holds_nothing)
            self._liveness_term = self._group.term
            self._sharing = None
            self.positions = LogPositions()
        return self._liveness

    def _quotas_used(self) -> Sequence[QuotaUse]:
        return () if self.quota_user is None else self.quota_user.quotas_used()

    def _pressures_told(self) -> list[DiskPressure]:
        """Those of all nodes that have little room, this one among them."""
        own = self.disk_pressures.own()
        return [*([] if own is None else [own]), *self.disk_pressures.told()][:NODES_PRESSED_MAX]

    def _parts(self, node_id: int, uses: Iterable[QuotaUse]) -> list[QuotaPart]:
        """A node's parts of quotas, as this leader deals them out."""
        now = self._ports.clock.monotonic()
        if self._sharing is None:
            self._sharing = QuotaSharing(now)
        return self._sharing.told(node_id, uses, now)

    async def _lead(self) -> None:
        now = self._touched_at = self._ports.clock.monotonic()
        liveness = self.liveness()
        condition = self._condition()
        own = Report(self._replica.applied_index, condition.disk, condition.lag_bytes, self._replica.levels)
        liveness.heard(self._node_id, now, own)
        self._loads.heard(self._node_id, self._loads.own(), self._group.term)
        if self.quota_user is not None:
            self.quota_user.quotas_parted(self._parts(self._node_id, self.quota_user.quotas_used()))
        self._judge(liveness, now)
        silent = self._silent(liveness, now)
        if silent:
            probes = asyncio.gather(*(self._probe(liveness, node_id) for node_id in silent))
            answered, reached = await asyncio.gather(probes, self._ask_around())
            unheard = {node_id for node_id, there in zip(silent, answered, strict=True) if not there}
            self._judge_by(liveness, unheard, reached)

    def _silent(self, liveness: NodeLiveness, now: float) -> list[int]:
        """The nodes to probe, of those that are not well."""
        wanted = {NodeState.SUSPECTED}
        if now - self._dead_asked_at >= DEAD_ASKED_SECONDS:
            self._dead_asked_at = now
            wanted.add(NodeState.DEAD)
        return [
            node_id for node_id, it in self.verdicts.items() if it.state in wanted and not liveness.is_gone(node_id)
        ]

    def _heard(self) -> set[int]:
        """The other nodes, without the silent ones."""
        return self._replica.state.node_table.nodes.keys() - self.verdicts.keys() - {self._node_id}

    async def _ask_around(self) -> dict[int, frozenset[int]]:
        """Ask the nodes that are heard which nodes they reach."""
        helpers = helpers_among(self._heard(), self._group.membership.voters)
        nodes = self._replica.state.node_table.nodes.keys() - {self._node_id}
        return await self.reacher.ask(helpers, nodes if len(nodes) <= REACHED_MAX else self.verdicts.keys())

    def _judge_by(self, liveness: NodeLiveness, unheard: set[int], reached: dict[int, frozenset[int]]) -> None:
        """Judge by the nodes that the others reach; hand over to a better connected one."""
        if not self._group.serves or liveness is not self._liveness:
            return
        now = self._ports.clock.monotonic()
        for helper, nodes in reached.items():
            for node_id in nodes & unheard:
                liveness.reached(node_id, helper, now)
        self._judge(liveness, now)
        successor = better_connected(self._heard(), unheard, reached, self._group.membership.voters)
        if successor and now - liveness.began >= LED_SECONDS_MIN:
            log.info("node %d, which hears nodes that this one does not, is to lead the metadata quorum", successor)
            try:
                self._group.transfer_leadership(successor)
            except RaftError as error:
                log.info("node %d does not lead the metadata yet: %s", successor, error)

    def registers(self, node_id: int, levels: LevelRange) -> None:
        """A node registers, which is before its first heartbeat: it lives."""
        self.liveness().heard(node_id, self._ports.clock.monotonic(), Report(levels=levels))

    def judged(self, node_id: int) -> LivenessVerdict:
        """The leader's verdict on a node as of now."""
        return self.liveness().verdict(node_id, self._ports.clock.monotonic())

    def _judge(self, liveness: NodeLiveness, now: float) -> None:
        before, nodes = self.verdicts, self._replica.state.node_table.nodes
        self.verdicts = liveness.verdicts(nodes, now)
        self._verdicts_term = self._group.term
        for node_id in (before.keys() | self.verdicts.keys()) & nodes.keys():
            old, new = before.get(node_id), self.verdicts.get(node_id)
            if (old and old.state) == (new and new.state):
                continue
            if new is None:
                log.info("node %d is alive", node_id)
            else:
                log.warning("node %d is %s: %s", node_id, new.state.value, new.reason)

    async def _probe(self, liveness: NodeLiveness, node_id: int) -> bool:
        """Ask a silent node whether it answers."""
        try:
            await self._ports.calls.call(node_id, INTRODUCE, Nothing(), timeout_seconds=PROBE_SECONDS_MAX)
        except RpcError as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            liveness.failed(node_id, str(error), refused=refused, now=self._ports.clock.monotonic())
            return False
        return True

    def answer(self, call: RpcCall[NodeHeartbeat]) -> Reply[HeartbeatReply]:
        """Raises `NotMetadataLeader`."""
        if not self._group.serves:
            raise NotMetadataLeader("this node does not lead the metadata quorum")
        assert call.node is not None, "the method is for nodes only"
        node_id, beat = call.node.node_id, call.request
        self._learn_leaders(beat.leaders)
        self._clocks.heard(node_id, beat.now_ms)
        known = self._replica.state.registered(node_id)
        if known is not None and known.incarnation in (b"", call.node.incarnation):
            now = self._ports.clock.monotonic()
            if beat.leaves:
                self.liveness().left(node_id, now, beat.disk)
            else:
                levels = LevelRange(beat.level_oldest, beat.level_newest)
                self.liveness().heard(node_id, now, Report(beat.applied, beat.disk, beat.lag_bytes, levels))
                self._loads.heard(node_id, beat.load, self._group.term)
                self.disk_pressures.heard(node_id, beat.disk_pressure)
                self.positions.heard(node_id, beat.applied, self._replica.applied_index, now)
            if beat.leaves or node_id in self.verdicts:
                self._judge(self.liveness(), now)
        parts = self._parts(node_id, (QuotaUse(it.quota, it.whole, it.used, it.held_back) for it in beat.quotas))
        verdicts = [NodeVerdict(node, it.state.value, it.reason) for node, it in self.verdicts.items()]
        return Reply(
            HeartbeatReply(
                term=self._group.term,
                leaders=self._leaders.told(),
                verdicts=verdicts[:1_000],
                clocks=self._clocks.told(),
                quotas=[ToldPart(*part) for part in parts],
                disk_pressures=self._pressures_told(),
            )
        )
