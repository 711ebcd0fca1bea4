"""A start whose manifest of the remote tier is missing, or an older copy, fetches what counts from another replica.

The checkpoint says how many changes there were. Any replica that has them will do: those that follow are in this node's
own log, behind the checkpoint, and changes are numbered, so what comes twice is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing

from mainstem.rpc.errors import RpcError
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.snapshots import (
    FETCH_REMOTE_FILES,
    FetchRemoteFiles,
    RemoteFilesPart,
    WriteGroupSnapshotRefused,
)
from mainstem.rpc.other_nodes import Calls
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import StorageError
from mainstem.storage.remote.decided.remote_pages import RemoteImage, pages
from mainstem.storage.remote.decided.remote_tier import RemoteTier

log = logging.getLogger(__name__)

FETCH_SECONDS_MAX = 600.0
"""Seconds for all pages of a write group."""


class RemoteRecovery:
    """Gives other nodes what counts in the remote tier, and fetches it from them."""

    def __init__(self, remote: RemoteTier, calls: Calls | None, others: Callable[[int], Iterable[int]]) -> None:
        """`others`: the other nodes that have a replica of a write group."""
        self._remote = remote
        self._calls = calls
        self._others = others

    def register(self, handlers: Handlers) -> None:
        handlers.stream(FETCH_REMOTE_FILES, self._give)

    async def _give(self, call: RpcCall[FetchRemoteFiles]) -> AsyncIterator[Reply[RemoteFilesPart]]:
        """Raises `WriteGroupSnapshotRefused`."""
        group, number = call.request.group, call.request.number
        there = self._remote.position(group).number
        if there < number:
            raise WriteGroupSnapshotRefused(f"write group {group}: the remote tier is at change {there} here")
        total = 0
        try:
            async for page in pages(self._remote, group):
                total += page.named
                yield Reply(RemoteFilesPart(page.standing, page.ranges))
        except StorageError as error:
            raise WriteGroupSnapshotRefused(f"write group {group}: {error}") from error
        yield Reply(RemoteFilesPart(total=total))

    async def recover(self, group: int, number: int) -> bool:
        """Fetch what counts in a write group with change `number`, or a later one, from a node that has it, and put it
        in the place of what is here. Returns whether one gave it. Raises `StorageError` when it cannot be written."""
        for node_id in self._others(group) if self._calls is not None else ():
            try:
                image = await self._fetch(node_id, group, number)
            except (RpcError, ValueError) as error:
                log.warning("write group %d: node %d does not tell its remote files: %s", group, node_id, error)
                continue
            await self._remote.supersede(group, image.position, image.notes, image.files)
            log.warning(
                "write group %d: the remote tier's manifest lacked changes up to %d; node %d told its %d files",
                group, number, node_id, len(image.files),
            )  # fmt: skip
            return True
        return False

    async def _fetch(self, node_id: int, group: int, number: int) -> RemoteImage:
        assert self._calls is not None
        image: RemoteImage | None = None
        request = FetchRemoteFiles(group, number)
        replies = self._calls.stream(node_id, FETCH_REMOTE_FILES, request, timeout_seconds=FETCH_SECONDS_MAX)
        async with aclosing(replies):
            async for part, _attachment in replies:
                if part.remote is None:
                    if image is None or image.named != part.total or image.position.number < number:
                        raise ValueError(f"of {part.total} files came {image.named if image is not None else 0}")
                    return image
                image = image or RemoteImage.begun(part.remote)
                image.take(part.remote, part.ranges)
        raise ValueError("the remote files of a write group without their end")
