"""The announcement of files that are about to come to a shared store.

The writer of one has the node say its name in the log of the write group first, so that its remains are known however
the writer ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Announce = Callable[[int, Sequence[str]], None]
"""Write group, and names of files → returns when its log says them, durably; raises what a refusal is."""


def unannounced(group: int, names: Sequence[str]) -> None:
    """The announcement of files of a node's own disk, which it finds by itself."""
