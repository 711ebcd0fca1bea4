"""How long a task of a splitter bears with a shared store that fails it: as long as its node tries a call again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mainstem.pipeline.link.node_link import NodeLink
from mainstem.storage.shared_store.shared_store import SharedStore

T = TypeVar("T")


def patient(store: SharedStore | None, node: NodeLink, work: Callable[[], T]) -> T:
    """The result of `work`, which writes to this store; None: to a disk, which is not asked twice. Raises as `work`."""
    if store is None:
        return work()
    from mainstem.storage.shared_store.begun_again import begun_again

    return begun_again(work, node.reached(store).config.retry_seconds)
