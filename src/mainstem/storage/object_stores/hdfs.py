"""HDFS as an object store, through hdfs-native.

HDFS has no condition on a write but that a rename fails where there is a file, so that objects can be created once and
not be replaced (`ReplaceUnsupported`). An object is written under a name that no reader looks at, closed, and renamed.
Hadoop's configuration (`HADOOP_CONF_DIR`) names the name nodes, Kerberos's ticket cache the user.

The blocking client is used, in threads of its own: the other one panics when a name node cannot be reached. A call that
takes longer than it may is given up; its thread is busy until HDFS answers, and while all of them are, calls time out.
None keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hdfs_native import Client, FileStatus, WriteOptions

from mainstem.model import Buffer
from mainstem.ports import ListedObject, ObjectInfo, ObjectRange
from mainstem.storage.object_stores.call_threads import CallThreads
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectExists,
    ObjectStoreError,
    ObjectStoreRefused,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
    ObjectTooShort,
    ReplaceUnsupported,
)
from mainstem.storage.object_stores.folders import page_of
from mainstem.storage.object_stores.names import UNFINISHED, checked, checked_folder

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

T = TypeVar("T")

_REFUSED = re.compile(r"AccessControlException|AuthorizationException|SASLError|GSSAPIError|NoSASLMechanism|SafeMode")


THREADS_MAX = 32
"""Calls under way at once: a large read keeps one busy for as long as the network takes."""


class HdfsObjectStore:
    """`ObjectStore` in a folder of HDFS."""

    def __init__(self, url: str, folder: str, config: ObjectStoreConfig) -> None:
        """`url`: of the name node or the name service; `folder`: absolute, without a slash at its end."""
        self._url = f"{url}{folder}"
        self._folder = folder
        self._client = Client(url, dict(config.options))
        self._timeout_seconds = config.request_timeout_seconds
        self._threads = CallThreads(THREADS_MAX, "hdfs")

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        def work() -> list[Buffer]:
            reader = self._client.read(self._path(name))
            for position, length in ranges:
                if position + length > len(reader):
                    raise ObjectTooShort(
                        f"{self._url}/{name} ends at {len(reader)}, {position + length - len(reader)} bytes before "
                        "what was asked for does"
                    )
            return [reader.read_range(position, length) for position, length in ranges]

        return await self._run(name, work)

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        checked(name)
        if replaces is not None:
            raise ReplaceUnsupported(f"{self._url}: HDFS cannot replace an object on condition; create one instead")

        async def whole() -> AsyncIterator[Buffer]:
            yield content

        return await self._written(name, whole, overwrite=False)

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        return await self._written(name, parts, overwrite=True)

    async def _written(self, name: str, parts: Callable[[], AsyncIterator[Buffer]], *, overwrite: bool) -> ObjectInfo:
        path = self._path(name)
        unfinished = f"{path.rpartition('/')[0]}/{UNFINISHED}{secrets.token_hex(8)}"
        try:
            writer = await self._run(name, lambda: self._created(unfinished))
            async for part in parts():
                await self._run(name, partial(writer.write, part))
            await self._run(name, writer.close)
            await self._run(name, lambda: self._client.rename(unfinished, path, overwrite))
        except BaseException:
            with suppress(ObjectStoreError):
                await asyncio.shield(self._run(name, lambda: self._client.delete(unfinished)))
            raise
        return await self.info(name)

    async def info(self, name: str) -> ObjectInfo:
        status = await self._run(name, lambda: self._client.get_file_info(self._path(name)))
        if status.isdir:
            raise ObjectAbsent(f"{self._url}/{name}: there is no such object")
        return ObjectInfo(status.length, f"{status.modification_time:x}-{status.length:x}")

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(ObjectAbsent):
                await self._run(name, partial(self._client.delete, self._path(name)))

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        checked_folder(prefix)
        return await self._run(prefix, lambda: page_of(self._entries, prefix, after))

    def _created(self, path: str) -> RawFileWriter:
        """A new file, without the wrapper of hdfs-native: that is a file of Python's, which closes itself once more
        when it is collected, in whichever thread this is. The event loop then waits for a name node that says
        nothing."""
        writer: RawFileWriter = self._client.inner.create(path, WriteOptions(create_parent=True))
        return writer

    def _entries(self, folder: str) -> list[tuple[str, ListedObject | None]]:
        """The entries of a folder: names, and the object; None for a folder."""
        found: list[tuple[str, ListedObject | None]] = []
        try:
            statuses: list[FileStatus] = list(self._client.list_status(self._path(folder) if folder else self._folder))
        except FileNotFoundError:
            return found
        for status in statuses:
            name = status.path.rpartition("/")[2]
            if not name.startswith("."):
                listed = ListedObject(f"{folder}/{name}" if folder else name, status.length, status.modification_time)
                found.append((name, None if status.isdir else listed))
        return found

    def _path(self, name: str) -> str:
        return f"{self._folder}/{checked(name)}"

    async def _run(self, name: str, work: Callable[[], T]) -> T:
        """Have a thread do what blocks; translates its errors."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (ObjectStoreError, ValueError):
            raise
        except TimeoutError as error:
            raise ObjectStoreTimedOut(f"{self._url}/{name}: no answer in time") from error
        except Exception as error:
            raise translated(f"{self._url}/{name}", error) from error


def translated(place: str, error: Exception) -> ObjectStoreError:
    """The meaning of an error of hdfs-native."""
    text = str(error)
    if isinstance(error, FileNotFoundError) or "FileNotFoundException" in text:
        return ObjectAbsent(f"{place}: there is no such object")
    if isinstance(error, FileExistsError) or "FileAlreadyExistsException" in text:
        return ObjectExists(f"{place} is there already")
    line = text.strip().split("\n", 1)[0][:300]
    if _REFUSED.search(text):
        return ObjectStoreRefused(f"{place}: {line}; check the ticket, the rights and the safe mode of the name node")
    return ObjectStoreUnavailable(f"{place}: {line}")
