"""Bugs to plant in whole nodes, by `cluster.planted`, besides those in storage roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainstem.broker.groups.machine import GroupMachine
from mainstem.broker.groups.partition import GroupPartition
from mainstem.storage.checkpointer import Checkpointer


def _coordinator_serves_before_replay() -> tuple[type, str, Any]:
    """A coordinator answers while its log is being read."""
    load = GroupPartition._load

    async def load_serving(partition: GroupPartition) -> None:
        partition.machine = GroupMachine(partition._config, partition._new_id, partition._counts)
        await load(partition)

    return GroupPartition, "_load", load_serving


def _no_checkpoint() -> tuple[type, str, Any]:
    """Nothing is checkpointed, so nothing is pruned."""

    async def checkpoint(checkpointer: Checkpointer) -> None:
        """Later."""

    return Checkpointer, "checkpoint", checkpoint


WHOLE_PLANTS: dict[str, Callable[[], tuple[type, str, Any]]] = {
    "coordinator-serves-before-replay": _coordinator_serves_before_replay,
    "no-checkpoint": _no_checkpoint,
}
