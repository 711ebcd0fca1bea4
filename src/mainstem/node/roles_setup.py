"""The parts that the roles of a node are opened with, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from mainstem.model import Node
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NodePorts, OpeningWatch
from mainstem.storage.role import stop
from mainstem.supervised import Supervision
from mainstem.turns import Turns


class Background:
    """The background tasks of a node, except those of the roles themselves; they run until it stops."""

    def __init__(self, supervision: Supervision, stack: AsyncExitStack) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self._supervision = supervision
        self._stack = stack

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        task = self._supervision.start(work, name)
        self.tasks.append(task)
        self._stack.push_async_callback(stop, [task])


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesSetup:
    """`stack` closes what is opened, the last first."""

    config: NodeConfig
    identity: Node
    """The registration of this node."""
    ports: NodePorts
    stack: AsyncExitStack
    watch: OpeningWatch
    turns: Turns
    supervision: Supervision
    background: Background
