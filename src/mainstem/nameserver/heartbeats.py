"""Nodes tell the metadata leader that they live; it tells them who leads which group, and who does not live.

One task per node: every `heartbeat_seconds`, and at once when there is news of this node's own groups. What their
clocks say goes the same way (`clocks`). All of it is soft: nothing is logged, and a new leader begins with what it last
heard from the one before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mainstem.model import LevelRange
from mainstem.nameserver.clocks import Clocks
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.group_leaders import GroupLeaders
from mainstem.nameserver.liveness import Liveness, Report, State, Thresholds, Verdict
from mainstem.nameserver.metadata_group import MetadataGroup
from mainstem.nameserver.reach import PROBE_SECONDS_MAX, Reacher, better_connected, helpers_among
from mainstem.nameserver.replica import Replica
from mainstem.raft import RaftError
from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Call
from mainstem.rpc.metadata import (
    HEARTBEAT,
    INTRODUCE,
    REACHED_MAX,
    GroupLeader,
    Heartbeat,
    HeartbeatReply,
    NodeVerdict,
    NotTheLeader,
)
from mainstem.rpc.method import Nothing, Reply

DEAD_ASKED_SECONDS = 5.0
"""Between two questions to others about nodes that are dead: one that came back where only others hear it."""

LED_SECONDS_MIN = 3.0
"""A leader hands over to a node that is better connected only after so long: time for everybody to be heard by it."""

LEAVE_SECONDS_MAX = 1.0

log = logging.getLogger(__name__)


class Condition(NamedTuple):
    """How this node is, as its storage role says."""

    disk: str = ""
    lag_bytes: int = 0


class Heartbeats:
    """`run` is the task."""

    def __init__(
        self,
        node_id: int,
        group: MetadataGroup,
        replica: Replica,
        leaders: GroupLeaders,
        ports: ClusterPorts,
        heartbeat_seconds: float,
        thresholds: Thresholds,
    ) -> None:
        self.condition: Callable[[], Condition] = Condition
        self.verdicts: dict[int, Verdict] = {}
        """The newest known, of nodes that are not well."""
        self._verdicts_term = 0
        self._node_id = node_id
        self._group = group
        self._replica = replica
        self._leaders = leaders
        self._ports = ports
        self._heartbeat_seconds = heartbeat_seconds
        self._thresholds = thresholds
        self._liveness: Liveness | None = None
        self._liveness_term = 0
        self.reacher = Reacher(node_id, ports.calls)
        self._dead_asked_at = ports.clock.monotonic()
        self._clocks = Clocks(node_id, ports.clock)
        self._now = asyncio.Event()
        self._touched_at = ports.clock.monotonic()
        """When the metadata leader last answered, or this node led."""

    @property
    def out_of_touch(self) -> bool:
        """Neither leads nor has heard from the leader since it would be suspected in its place."""
        silence = self._ports.clock.monotonic() - self._touched_at
        return silence >= self._thresholds.suspect_seconds and not self._group.serves

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
                await self._group.changed_since(version)  # nobody to hear from
            self._now.set()
            await self._ports.sleep(self._heartbeat_seconds)

    async def leave(self) -> None:
        """The last one: nobody needs to wait for this node to be missed."""
        async with asyncio.timeout(LEAVE_SECONDS_MAX):
            await self._tell(leaves=True)

    async def _beat(self) -> None:
        if self._group.serves:
            await self._lead()
        else:
            await self._tell()

    async def _tell(self, *, leaves: bool = False) -> None:
        condition = self.condition()
        beat = Heartbeat(
            leaders=self._leaders.told(),
            applied=self._replica.applied_index,
            disk=condition.disk,
            lag_bytes=condition.lag_bytes,
            level_oldest=self._replica.levels.oldest,
            level_newest=self._replica.levels.newest,
            leaves=leaves,
            now_ms=max(0, self._ports.clock.now_ms()),
        )
        leader = self._group.whom_to_ask()
        if leader == 0:
            return
        try:
            reply = await self._ports.calls.call(
                leader, HEARTBEAT, beat, timeout_seconds=max(1.0, 2 * self._heartbeat_seconds)
            )
        except RpcError as error:
            log.debug("no answer to a heartbeat from node %d: %s", leader, error)
            self._group.asked_in_vain()
            return
        self._learn(reply.message)

    def _learn(self, reply: HeartbeatReply) -> None:
        self._touched_at = self._ports.clock.monotonic()
        self._learn_leaders(reply.leaders)
        self._clocks.learn(reply.clocks)
        if reply.term < self._verdicts_term:
            return
        self._verdicts_term = reply.term
        known = {state.value: state for state in State}
        self.verdicts = {
            it.node: Verdict(known[it.state], it.reason) for it in reply.verdicts if it.state in known
        }

    def _learn_leaders(self, leaders: Iterable[GroupLeader]) -> bool:
        return self._leaders.learn_all(leaders, self._groups())

    def _groups(self) -> int:
        cluster = self._replica.state.cluster
        return cluster.write_groups if cluster is not None else 0

    def quorum_times(self) -> list[int | None]:
        """What the clocks of the members of the metadata group say now, in ms; None: not heard lately."""
        return [self._clocks.time_of(node_id) for node_id in sorted(self._group.membership.members)]

    # the leader

    def liveness(self) -> Liveness:
        """Of this leadership."""
        if self._liveness is None or self._liveness_term != self._group.term:
            dead = {node: it.reason for node, it in self.verdicts.items() if it.state is State.DEAD}
            dead.pop(self._node_id, None)
            self._liveness = Liveness(self._thresholds, self._ports.clock.monotonic(), dead)
            self._liveness_term = self._group.term
        return self._liveness

    async def _lead(self) -> None:
        now = self._touched_at = self._ports.clock.monotonic()
        liveness = self.liveness()
        condition = self.condition()
        own = Report(self._replica.applied_index, condition.disk, condition.lag_bytes, self._replica.levels)
        liveness.heard(self._node_id, now, own)
        self._judge(liveness, now)
        silent = self._silent(liveness, now)
        if silent:
            probes = asyncio.gather(*(self._probe(liveness, node_id) for node_id in silent))
            answered, reached = await asyncio.gather(probes, self._ask_around())
            unheard = {node_id for node_id, there in zip(silent, answered, strict=True) if not there}
            self._judge_by(liveness, unheard, reached)

    def _silent(self, liveness: Liveness, now: float) -> list[int]:
        """The nodes to look after, of those that are not well."""
        wanted = {State.SUSPECTED}
        if now - self._dead_asked_at >= DEAD_ASKED_SECONDS:
            self._dead_asked_at = now
            wanted.add(State.DEAD)
        return [
            node_id
            for node_id, it in self.verdicts.items()
            if it.state in wanted and not liveness.is_gone(node_id)
        ]

    def _heard(self) -> set[int]:
        """The other nodes, but those that are silent."""
        return self._replica.state.node_table.nodes.keys() - self.verdicts.keys() - {self._node_id}

    async def _ask_around(self) -> dict[int, frozenset[int]]:
        """Whom others reach."""
        helpers = helpers_among(self._heard(), self._group.membership.voters)
        nodes = self._replica.state.node_table.nodes.keys() - {self._node_id}
        return await self.reacher.ask(helpers, nodes if len(nodes) <= REACHED_MAX else self.verdicts.keys())

    def _judge_by(self, liveness: Liveness, unheard: set[int], reached: dict[int, frozenset[int]]) -> None:
        """Others told whom they reach."""
        if not self._group.serves or liveness is not self._liveness:
            return
        now = self._ports.clock.monotonic()
        for helper, nodes in reached.items():
            for node_id in nodes & unheard:
                liveness.reached(node_id, helper, now)
        self._judge(liveness, now)
        successor = better_connected(self._heard(), unheard, reached, self._group.membership.voters)
        if successor and now - liveness.began >= LED_SECONDS_MIN:
            log.info("node %d, which hears nodes that this one does not, is to lead the metadata group", successor)
            try:
                self._group.transfer_leadership(successor)
            except RaftError as error:
                log.info("node %d does not lead the metadata yet: %s", successor, error)

    def judged(self, node_id: int) -> Verdict:
        """The leader's verdict as of now."""
        return self.liveness().verdict(node_id, self._ports.clock.monotonic())

    def _judge(self, liveness: Liveness, now: float) -> None:
        before = self.verdicts
        self.verdicts = liveness.verdicts(self._replica.state.node_table.nodes, now)
        self._verdicts_term = self._group.term
        for node_id in before.keys() | self.verdicts.keys():
            old, new = before.get(node_id), self.verdicts.get(node_id)
            if (old and old.state) == (new and new.state):
                continue
            if new is None:
                log.info("node %d is alive", node_id)
            else:
                log.warning("node %d is %s: %s", node_id, new.state.value, new.reason)

    async def _probe(self, liveness: Liveness, node_id: int) -> bool:
        """Somebody who is silent: is anybody there?"""
        try:
            await self._ports.calls.call(node_id, INTRODUCE, Nothing(), timeout_seconds=PROBE_SECONDS_MAX)
        except RpcError as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            liveness.failed(node_id, str(error), refused=refused, now=self._ports.clock.monotonic())
            return False
        return True

    def answer(self, call: Call[Heartbeat]) -> Reply[HeartbeatReply]:
        """Raises `NotTheLeader`."""
        if not self._group.serves:
            raise NotTheLeader("this node does not lead the metadata group")
        assert call.node is not None, "the method is for nodes only"
        node_id, beat = call.node.node_id, call.request
        self._learn_leaders(beat.leaders)
        self._clocks.heard(node_id, beat.now_ms)
        known = self._replica.state.registered(node_id)
        if known is not None and known.incarnation in (b"", call.node.incarnation):
            now = self._ports.clock.monotonic()
            if beat.leaves:
                self.liveness().left(node_id, now)
            else:
                levels = LevelRange(beat.level_oldest, beat.level_newest)
                self.liveness().heard(node_id, now, Report(beat.applied, beat.disk, beat.lag_bytes, levels))
            if beat.leaves or node_id in self.verdicts:
                self._judge(self.liveness(), now)
        verdicts = [NodeVerdict(node, it.state.value, it.reason) for node, it in self.verdicts.items()]
        return Reply(
            HeartbeatReply(
                term=self._group.term,
                leaders=self._leaders.told(),
                verdicts=verdicts[:1_000],
                clocks=self._clocks.told(),
            )
        )
