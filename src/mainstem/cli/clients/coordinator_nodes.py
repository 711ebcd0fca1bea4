"""The nodes that coordinate groups and transactional ids, asked over Kafka's protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mainstem.address import Address
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import NodeUnreachable, RequestRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import FindCoordinatorRequest
from mainstem.protocol.messages.metadata import MetadataRequest

AGAIN_SECONDS = 30.0
"""A coordinator that moves has loaded its log, and transactions have their markers, within this."""
PAUSE_SECONDS = 0.1

PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class CoordinatorNodes:
    """Asks the nodes of the cluster that answers at `bootstrap`, over `connections`."""

    def __init__(self, bootstrap: str, connections: KafkaConnections, key_type: int, noun: str) -> None:
        """`key_type`: what is coordinated, as FindCoordinator has it; `noun`: what messages call it."""
        self.bootstrap = bootstrap
        self.connections = connections
        self._key_type = key_type
        self._noun = noun

    def of(self, key: str) -> Address | ErrorCode:
        """The node that coordinates a key."""
        request = FindCoordinatorRequest(key_type=self._key_type, coordinator_keys=(key,))
        [found] = self.connections.call_any(self.bootstrap, request, 4).coordinators
        return ErrorCode(found.error_code) if found.error_code else Address(found.host, found.port)

    def asked(self, key: str, request: Any, version: int, code_of: Callable[[Any], int]) -> Any:
        """The answer of a key's coordinator, which may be about to start, or to move. Raises RequestRefused."""
        answer, code = self.answered(key, request, version, code_of)
        if code is not ErrorCode.NONE:
            raise RequestRefused(f"{self._noun} {key}: {code.message} ({code.name})")
        return answer

    def answered(self, key: str, request: Any, version: int, code_of: Callable[[Any], int]) -> tuple[Any, ErrorCode]:
        """As `asked`, with an error that does not pass by itself as the second value; then the answer may be None."""

        def ask() -> tuple[Any, ErrorCode]:
            node = self.of(key)
            if isinstance(node, ErrorCode):
                return None, node
            answer = self.call(node, request, version)
            return answer, ErrorCode(code_of(answer))

        return _settled(ask)

    def listed_at(self, node: Address, request: Any, version: int, what: str) -> Any:
        """The answer of a node to a request about all that it coordinates, once it has read their logs. Raises
        RequestRefused."""

        def ask() -> tuple[Any, ErrorCode]:
            answer = self.call(node, request, version)
            return answer, ErrorCode(answer.error_code)

        answer, code = _settled(ask)
        if code is not ErrorCode.NONE:
            raise RequestRefused(f"the node at {node} lists no {what}: {code.message} ({code.name})")
        return answer

    def call(self, node: Address, request: Any, version: int) -> Any:
        """Raises NodeUnreachable."""
        try:
            return self.connections.call(node, request, version)
        except OSError as error:
            raise NodeUnreachable(f"no answer of the node at {node}: {error.strerror or error}") from None

    def every_node(self) -> list[Address]:
        """All that may coordinate something. Raises NodeUnreachable, NotAdmitted."""
        metadata = self.connections.call_any(self.bootstrap, MetadataRequest(topics=()), 9)
        return [Address(broker.host, broker.port) for broker in metadata.brokers]


def _settled(ask: Callable[[], tuple[Any, ErrorCode]]) -> tuple[Any, ErrorCode]:
    """The first answer whose error does not pass by itself; the last one, when `AGAIN_SECONDS` are over."""
    deadline = time.monotonic() + AGAIN_SECONDS
    while True:
        answer, code = ask()
        if code not in PASSING or time.monotonic() >= deadline:
            return answer, code
        time.sleep(PAUSE_SECONDS)
