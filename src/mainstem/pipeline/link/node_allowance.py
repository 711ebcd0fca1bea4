"""The allowance that a node gives to the tasks of its splitter."""

from __future__ import annotations

from mainstem.pipeline.link.node_link import NodeLink

ALLOWED_BYTES = 2 << 20
"""Bytes asked for at once. Each question costs the node and the task a tenth of a millisecond and wakes both
up; the bytes last for ten to twenty."""


class NodeAllowance:
    """An `Allowance` asked of the node, `ALLOWED_BYTES` at a time. `passes`: how often the work goes over each byte;
    `upkeep`: the bytes are of files that are merged, compacted or uploaded, which can wait, and not of the journal."""

    def __init__(self, node: NodeLink, passes: int = 1, *, upkeep: bool = False) -> None:
        self._node = node
        self._upkeep = upkeep
        self._passes = passes
        self._left = 0

    def __call__(self, size: int) -> None:
        """Return when so many bytes may be worked on."""
        self._left -= size // self._passes
        while self._left < 0:
            self._node.pace(ALLOWED_BYTES, upkeep=self._upkeep)
            self._left += ALLOWED_BYTES
