"""Readings of everything from disk 2: the node is started anew before each, so that its memory holds nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from demo.messages.ledger import Reading
from demo.messages.readers import read_whole
from demo.node_process import NodeProcess

SECONDS_MAX = 60.0


class ColdReader:
    """Reads the same topics again and again; `served` has who served which reading."""

    def __init__(self, node: NodeProcess, topics: Mapping[str, int], say: Callable[[str], None]) -> None:
        """`topics`: name -> partitions."""
        self._node = node
        self._topics = topics
        self._say = say
        self.served: dict[str, Mapping[str, int]] = {}
        """The bytes that were read -> bytes by tier."""

    def read(self, what: str) -> dict[str, Reading]:
        """Restart the node and read all topics from their beginning. Raises NodeFailed, TimeoutError."""
        self._node.stop()
        self._node.start()
        self._say(f"node restarted with empty memory; reading {what}")
        readings = read_whole(self._node.addresses["kafka"], self._topics, SECONDS_MAX)
        self.served[what] = self._node.bytes_by_tier()
        return readings
