"""How far one group is behind, asked for now.

Its coordinator knows who reads what and what is committed, the brokers of its queues where these end: each is asked
once for all of its queues, and once more for the times of the messages that the group is to read next, in the
partitions that are furthest behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.group_lag.queue_facts import (
    ENDS_ONLY,
    ClientAsked,
    LagFacts,
    QueueAsked,
    QueueFacts,
    QueueFactsHere,
)
from mainstem.broker.group_lag.readers import Queue, Reader, ReadGroup, read_group
from mainstem.broker.machines.served_topic import NO_LEADER
from mainstem.broker.queue_routing import QueueRouting
from mainstem.group_lag import GroupLag, PartitionLag, cause, first_cause, lag_between
from mainstem.ports import Clock, Metadata
from mainstem.protocol.error_codes import ErrorCode

QUEUES_PER_CALL = 1_000
"""Of one question to another node."""

TIMES_MAX = 100
"""Partitions whose next message is read: a millisecond or so each, more where it lies on a disk or further away."""

PARTITIONS_MAX = 1_000
"""Partitions of a group that are told one by one."""

ELSEWHERE_MAX = 100_000
"""Queues of other nodes whose ends are remembered while all groups are looked at: some 20 MB."""

QUEUES_AT_ONCE = 500
"""Looked at in one turn of the event loop: about a millisecond."""


class OtherLagNodes(Protocol):
    """The other nodes, as far as they can tell. None: the node is not reached, or its version does not tell."""

    async def facts(
        self, node_id: int, queues: Sequence[QueueAsked], clients: Sequence[ClientAsked]
    ) -> LagFacts | None: ...

    async def group(self, node_id: int, group_id: str) -> GroupLag | ErrorCode | None:
        """The lag of a group, by the node that coordinates it."""
        ...


class _Led(NamedTuple):
    """A queue with the node that serves it."""

    queue: Queue
    queue_id: int
    node_id: int


class GroupLags:
    """Of the groups of a cluster; `others`: None where there are no other nodes."""

    def __init__(
        self,
        node_id: int,
        served: ServedPartitions,
        here: QueueFactsHere,
        metadata: Metadata,
        routing: QueueRouting,
        clock: Clock,
        others: OtherLagNodes | None = None,
    ) -> None:
        self._node_id = node_id
        self._served = served
        self._here = here
        self._metadata = metadata
        self._routing = routing
        self._clock = clock
        self._others = others

    async def of_group(self, group_id: str) -> GroupLag:
        """By whichever node coordinates the group. Raises `CoordinatorRefusal`, with GROUP_ID_NOT_FOUND where there is
        no such group."""
        leader = await self._served.leader_of(group_id)
        if leader == self._node_id:
            return await self.of_group_here(group_id)
        if leader == NO_LEADER or self._others is None:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        told = await self._others.group(leader, group_id)
        if not isinstance(told, GroupLag):
            raise CoordinatorRefusal(told or ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return told

    async def of_group_here(self, group_id: str) -> GroupLag:
        """A group that this node coordinates. Raises `CoordinatorRefusal`."""
        partition = await self._served.led_for(group_id)
        machine = partition.machine
        if machine is None:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        standing = await read_group(machine.state, self._served.topics, group_id)
        if partition.machine is not machine:  # it is emptied since, and what was read may lack any of it
            await self._served.led_for(group_id)
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if standing is None:
            raise CoordinatorRefusal(ErrorCode.GROUP_ID_NOT_FOUND)
        return await self._lag_of(group_id, standing)

    async def ends(self, queue_ids: Sequence[int], elsewhere: dict[int, QueueFacts]) -> Mapping[int, QueueFacts]:
        """The offsets at which queues begin and end, as far as anybody tells; by this node itself where it has a
        replica. `elsewhere`: the answers of others of late, to which this adds."""
        here = await self._here.facts([QueueAsked(queue_id, ENDS_ONLY) for queue_id in queue_ids])
        found = {queue_id: facts for queue_id, facts in zip(queue_ids, here.queues, strict=True) if facts is not None}
        if len(found) == len(queue_ids) or self._others is None:
            return found
        missing = [queue_id for queue_id in queue_ids if queue_id not in found and queue_id not in elsewhere]
        if missing:
            if len(elsewhere) >= ELSEWHERE_MAX:
                elsewhere.clear()
            asked = ((QueueAsked(queue_id, ENDS_ONLY), self._routing.broker_of(queue_id)) for queue_id in missing)
            elsewhere.update((await self._facts(asked)).queues)
        found.update(
            (queue_id, elsewhere[queue_id]) for queue_id in queue_ids if queue_id in elsewhere and queue_id not in found
        )
        return found

    async def _lag_of(self, group_id: str, standing: ReadGroup) -> GroupLag:
        led = await self._queues_of(standing)
        ends = await self._facts((QueueAsked(it.queue_id, ENDS_ONLY), it.node_id) for it in led)
        lags: list[tuple[int, _Led, QueueFacts | None]] = []
        for it in led:
            facts = ends.queues.get(it.queue_id)
            committed = standing.committed.get(it.queue)
            lags.append((-1 if facts is None else lag_between(committed, facts.log_start, facts.end), it, facts))
        lags.sort(key=lambda each: (-each[0], each[1].queue))
        behind = [it for lag, it, _ in lags[:PARTITIONS_MAX] if lag > 0]
        times = await self._facts(
            ((QueueAsked(it.queue_id, standing.committed.get(it.queue) or 0), it.node_id) for it in behind[:TIMES_MAX]),
            ((_client(reader), it.node_id) for it in behind if (reader := standing.readers.get(it.queue)) is not None),
        )
        loops = self._served.loops(group_id)
        rows = [self._row(standing, *each, times, loops=loops) for each in lags[:PARTITIONS_MAX]]
        return GroupLag(
            group=group_id,
            kind=standing.kind,
            state=standing.state,
            members=standing.members,
            lag=sum(lag for lag, _, facts in lags if facts is not None),
            seconds=max((row.seconds for row in rows if row.seconds is not None), default=None),
            why=first_cause(row.why for row in rows),
            partitions_count=len(lags),
            partitions=rows,
        )

    def _row(
        self, standing: ReadGroup, lag: int, it: _Led, facts: QueueFacts | None, times: _Known, *, loops: bool
    ) -> PartitionLag:
        reader = standing.readers.get(it.queue)
        first = times.queues.get(it.queue_id)
        seconds = None
        if first is not None and first.time_ms is not None:
            seconds = max(0.0, (self._clock.now_ms() - first.time_ms) / 1000)
        return PartitionLag(
            topic=it.queue[0],
            partition=it.queue[1],
            committed=standing.committed.get(it.queue),
            log_start=None if facts is None else facts.log_start,
            end=None if facts is None else facts.end,
            lag=None if facts is None else lag,
            seconds=seconds,
            why=cause(
                leaderless=it.node_id == NO_LEADER,
                lag=None if facts is None else lag,
                seconds=seconds,
                has_member=reader is not None,
                rebalancing=standing.rebalancing,
                loops=loops,
                throttled=reader is not None and (it.node_id, _client(reader)) in times.throttled,
            ),
            member=None if reader is None else reader.member_id,
            client_id=None if reader is None else reader.client_id,
            host=None if reader is None else reader.host,
        )

    async def _queues_of(self, standing: ReadGroup) -> list[_Led]:
        """All partitions of the topics that the group reads or has offsets of; topics that are gone are left out."""
        found: list[_Led] = []
        for name in sorted({topic for topic, _ in (*standing.committed, *standing.readers)}):
            topic = self._metadata.topic(name)
            if topic is None:
                continue
            for partition in range(topic.partitions):
                queue_id = topic.queue_id(partition)
                found.append(_Led((name, partition), queue_id, self._routing.broker_of(queue_id)))
                if len(found) % QUEUES_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return found

    async def _facts(
        self,
        queues: Iterable[tuple[QueueAsked, int]],
        clients: Iterable[tuple[ClientAsked, int]] = (),
    ) -> _Known:
        """Ask the nodes that serve these queues, each in parts."""
        queues_of: dict[int, list[QueueAsked]] = {}
        for asked, node_id in queues:
            queues_of.setdefault(node_id, []).append(asked)
        clients_of: dict[int, list[ClientAsked]] = {}
        for client, node_id in dict.fromkeys(clients):
            clients_of.setdefault(node_id, []).append(client)
        known = _Known({}, set())
        parts: list[tuple[int, list[QueueAsked], list[ClientAsked]]] = []
        for node_id in (queues_of.keys() | clients_of.keys()) - {NO_LEADER}:
            of_queues, of_clients = queues_of.get(node_id, []), clients_of.get(node_id, [])
            for first in range(0, max(len(of_queues), len(of_clients)), QUEUES_PER_CALL):
                part = slice(first, first + QUEUES_PER_CALL)
                parts.append((node_id, of_queues[part], of_clients[part]))
        answers = await asyncio.gather(*(self._ask(*part) for part in parts))
        for (node_id, asked_here, clients_here), facts in zip(parts, answers, strict=True):
            if facts is None or len(facts.queues) != len(asked_here) or len(facts.throttled) != len(clients_here):
                continue
            for asked, fact in zip(asked_here, facts.queues, strict=True):
                if fact is not None:
                    known.queues[asked.queue_id] = fact
            known.throttled.update(
                (node_id, client) for client, held_back in zip(clients_here, facts.throttled, strict=True) if held_back
            )
        return known

    async def _ask(self, node_id: int, queues: Sequence[QueueAsked], clients: Sequence[ClientAsked]) -> LagFacts | None:
        if node_id == self._node_id:
            return await self._here.facts(queues, clients)
        return None if self._others is None else await self._others.facts(node_id, queues, clients)


def _client(reader: Reader) -> ClientAsked:
    return ClientAsked(reader.client_id, reader.host.removeprefix("/"))


class _Known(NamedTuple):
    queues: dict[int, QueueFacts]
    throttled: set[tuple[int, ClientAsked]]
    """With the node that holds the client back."""
