"""Has the observer of groups see which node coordinates them."""

from __future__ import annotations

from tests.simulation.cluster.lives import Life
from tests.simulation.migrating_groups.ownership import Ownership
from tests.simulation.whole.cluster import ClientsNode

from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.partition import CoordinatorPartition
from mainstem.model import Topic
from mainstem.node.node_roles import Roles


class Watch:
    """Of all nodes of a cluster."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    def opened(self, node: ClientsNode, roles: Roles, life: Life) -> None:
        assert roles.compute is not None
        served = roles.compute.groups.served
        make = served._partition  # noqa: SLF001 - partitions are made nowhere else

        def made(topic: Topic, index: int) -> CoordinatorPartition:
            partition = make(topic, index)
            self._follow(node.node_id, life, partition, index)
            return partition

        served._partition = made  # type: ignore[method-assign]  # noqa: SLF001
        for index, partition in served.partitions.items():
            self._follow(node.node_id, life, partition, index)

    def _follow(self, node_id: int, life: Life, partition: CoordinatorPartition, index: int) -> None:
        serve = partition.serve

        def serving(machine: ConsumerGroupMachine, records: int) -> None:
            if life.alive:
                self._ownership.served(node_id, index)
            serve(machine, records)

        partition.serve = serving  # type: ignore[method-assign]
        if partition.machine is not None:
            self._ownership.served(node_id, index)
