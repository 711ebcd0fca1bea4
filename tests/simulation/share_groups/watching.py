"""Has the observer of share groups see what nodes serve, and what their machines give out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.cluster.lives import Life
from tests.simulation.share_groups.deliveries import Deliveries, Reign
from tests.simulation.whole.cluster import ClientsNode

from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.served_states import STATE_TOPIC, StatePartition
from mainstem.broker.share_groups.state_machine import ReadBatches, ShareStateMachine
from mainstem.model import Topic
from mainstem.node.node_roles import Roles


class Watch:
    """Of all nodes of a cluster."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def opened(self, node: ClientsNode, roles: Roles, life: Life) -> None:
        assert roles.compute is not None
        served = roles.compute.shares.served
        make = served._partition  # noqa: SLF001 - partitions are made nowhere else

        def made(topic: Topic, index: int) -> StatePartition:
            partition = make(topic, index)
            self._follow(node, life, partition, topic.queue_id(index))
            return partition

        served._partition = made  # type: ignore[method-assign]  # noqa: SLF001
        topic = roles.nameserver.lookups.topic(STATE_TOPIC)
        for index, partition in served.partitions.items():
            assert topic is not None
            self._follow(node, life, partition, topic.queue_id(index))

    def _follow(self, node: ClientsNode, life: Life, partition: StatePartition, log: int) -> None:
        serve = partition.serve

        def begun(machine: ShareStateMachine) -> None:
            reign = self._deliveries.served(log)
            self._follow_machine(node, life, machine, reign)

        def serving(machine: ShareStateMachine, records: int) -> None:
            if life.alive:
                begun(machine)
            serve(machine, records)

        partition.serve = serving  # type: ignore[method-assign]
        if partition.machine is not None:
            begun(partition.machine)

    def _follow_machine(self, node: ClientsNode, life: Life, machine: ShareStateMachine, reign: Reign) -> None:
        acquire: Callable[..., Any] = ShareStateMachine.acquire

        def acquired(ticket: int, key: WindowKey, member_id: str, read: ReadBatches, *rest: Any) -> Any:
            result = acquire(machine, ticket, key, member_id, read, *rest)
            given = [run for answer in result.answers if answer.ticket == ticket for run in answer.response]
            if life.alive:
                node.cluster.guard(lambda: self._deliveries.granted(reign, key, member_id, given))
            return result

        machine.acquire = acquired  # type: ignore[method-assign, assignment]
