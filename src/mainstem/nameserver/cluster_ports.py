"""The ports through which a nameserver reaches the other nodes: Raft messages, calls, time, and its own
identity."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from mainstem.model import OWN_LEVELS, LevelRange
from mainstem.ports import Clock
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.other_nodes import CallsWithBytes, RaftTransport
from mainstem.rpc.wire.identity import Identity


class CallsAndAddresses(CallsWithBytes, Protocol):
    """Calls to other nodes, whose addresses the nameserver knows."""

    def know(self, node_id: int, address: str) -> None:
        """From now on, calls and messages reach the node at this address."""
        ...


class ClusterPorts(NamedTuple):
    exchange: RaftTransport
    calls: CallsAndAddresses
    handlers: Handlers
    """The nameserver's methods; the node's RPC server answers calls with them."""
    clock: Clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    record_calls: CallsWithBytes | None = None
    """Calls that carry records, so that these do not keep others waiting; None: `calls`."""
    cut_off: Callable[[int], bool] = lambda node_id: False
    """Whether the connection to a node has just ended and was not made again: its process may be gone."""


Connect = Callable[[Identity], Awaitable[ClusterPorts]]
"""Called once the metadata directory has shown which node this is."""


class Facts(NamedTuple):
    """The facts that a node registers besides its Kafka address."""

    rpc: str = ""
    """`host:port` for other nodes."""
    roles: tuple[str, ...] = ()
    version: str = ""
    levels: LevelRange = OWN_LEVELS
    """The feature levels at which its program can work."""


NO_FACTS = Facts()
