"""Shared by all connections of a server: the limits on their memory, the counts of what they do, their log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from mainstem.bounded_log import BoundedLog
from mainstem.ports import Clock
from mainstem.server.bounds.request_budget import RequestBudget
from mainstem.server.bounds.response_budget import ResponseBudget
from mainstem.server.config import ServerConfig


@dataclass(slots=True)
class Counters:
    """Counts since the server's start; only the event loop writes them."""

    accepted: int = 0
    refused: int = 0
    idle_closed: int = 0
    unread_closed: int = 0
    failures: int = 0
    unauthenticated: int = 0
    handshakes: int = 0
    """TLS handshakes that were done."""
    handshakes_refused: int = 0
    requests: int = 0
    strange_requests: int = 0
    """Of clients that had not shown who they are."""
    bytes_in: int = 0
    bytes_out: int = 0


class Shared:
    """One per server."""

    def __init__(self, config: ServerConfig, clock: Clock, responses_short: Callable[[], None]) -> None:
        """`responses_short` is called when memory for responses gets short."""
        self.config = config
        self.clock = clock
        self.counters = Counters()
        connections = logging.getLogger("mainstem.server.connection")
        self.refusals = BoundedLog(connections, clock)
        """Bounded log lines on connections that end by their peers' faults."""
        self.faults = BoundedLog(connections, clock)
        """Bounded log lines on connections that end by this node's faults."""
        self.budget = RequestBudget(config.request_bytes_in_flight_max)
        self.responses = ResponseBudget(config.response_bytes_max, responses_short)
        self.ids: Iterator[int] = count(1)
        """The numbers of new connections."""
