"""Object stores behind HTTP, S3 and GCS, through obstore.

obstore sends each request once: what is tried again, and when, is for `retries.py`, which knows of the other requests.
Only the parts of large objects are tried again by obstore itself, a few times: otherwise one failed part would cost the
whole object.

Of most failures obstore tells nothing but a text, the answer of the store included, so that the text is looked into
(`translated`). An error that it does not know counts as an outage."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import GCSStore, S3Store

from mainstem.model import Buffer
from mainstem.ports import ListedObject, ObjectInfo, ObjectRange
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreError,
    ObjectStoreRefused,
    ObjectStoreThrottled,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
    ObjectTooShort,
)
from mainstem.storage.object_stores.folders import PAGE_OBJECTS_MAX
from mainstem.storage.object_stores.names import checked, checked_folder

T = TypeVar("T")

PART_RETRIES = 3
"""Of one part of a large object, by obstore."""
COALESCED_BYTES = 256 * 1024
"""Ranges that are this near each other are one request: what lies between them takes less time than another one."""
SPANS_AT_ONCE_MAX = 10
"""Requests that one read has under way."""
DELETED_AT_ONCE_MAX = 1000
"""S3 takes as many names in one request."""

_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TEXT_MAX = 300

REFUSALS = {
    "AccessDenied": "the credentials do not allow this: grant reading, writing and deleting below the prefix",
    "AccountProblem": "the store's owner has to be asked",
    "AllAccessDisabled": "the store's owner has to be asked",
    "ExpiredToken": "the credentials have expired: renew them",
    "InvalidAccessKeyId": "the store does not know the access key: set the credentials of this store",
    "InvalidBucketName": "there can be no such bucket",
    "InvalidToken": "the session token is wrong: renew the credentials",
    "NoSuchBucket": "there is no such bucket: create it, or mend the URL",
    "PermanentRedirect": "the bucket is in another region: set the region",
    "RequestTimeTooSkewed": "the clocks differ by more than the store allows: set the clock of this machine",
    "SignatureDoesNotMatch": "the secret key is wrong, or something between here and the store changes requests",
    "UserProjectMissing": "requests to this bucket have to name a project that pays",
}
"""The stores' codes that no retry helps against, and what does."""

MACHINES_OWN = ("/latest/api/token", "/latest/meta-data", "169.254.170.2", "/computeMetadata/")
"""In the URLs from which containers and instances get their credentials, and which are asked when none are set."""

NONE_SET = (
    "no credentials are set, and this machine has none of its own: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, or GOOGLE_APPLICATION_CREDENTIALS, for the node and for splitters"
)


class RemoteObjectStore:
    """`ObjectStore` in a bucket. `url` is what messages call it."""

    def __init__(
        self, url: str, make: Callable[[dict[str, Any]], S3Store | GCSStore], config: ObjectStoreConfig
    ) -> None:
        """`make` gets what obstore takes as options of the client and of retries."""
        self._url = url
        client = {
            "timeout": timedelta(seconds=config.request_timeout_seconds),
            "connect_timeout": timedelta(seconds=config.connect_timeout_seconds),
            "allow_http": config.endpoint.startswith("http://"),
        }
        backoff = {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2}
        self._once = make({"client_options": client, "retry_config": _retries(0, config, backoff)})
        self._parts = cache(
            lambda: make({"client_options": client, "retry_config": _retries(PART_RETRIES, config, backoff)})
        )
        """Made for the first large object: a client takes ten milliseconds and memory of its own, and who only reads
        needs none."""
        self._part_bytes = config.part_bytes
        self._parts_in_flight = config.parts_in_flight
        self._by_version = isinstance(self._once, GCSStore)
        """GCS compares generations, the others entity tags."""

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        if len(ranges) == 1:  # as most are
            return [await self._span(name, ranges[0])]
        spans = coalesced(ranges)
        contents: list[memoryview] = []
        if len(spans) == 1:  # it needs no task of its own
            contents.append(await self._span(name, spans[0]))
        else:
            for start in range(0, len(spans), SPANS_AT_ONCE_MAX):
                some = spans[start : start + SPANS_AT_ONCE_MAX]
                contents += await asyncio.gather(*(self._span(name, span) for span in some))
        found: list[Buffer] = []
        for position, length in ranges:
            which = bisect_right(spans, position, key=lambda span: span.position) - 1
            begins = position - spans[which].position
            found.append(contents[which][begins : begins + length])
        return found

    async def _span(self, name: str, span: ObjectRange) -> memoryview:
        """The bytes of one range, in one request."""
        position, length = span
        answer = obstore.get_range_async(self._once, checked(name), start=position, length=length)
        content = memoryview(await self._ask(name, answer))
        if len(content) != length:
            raise ObjectTooShort(
                f"{self._url}/{name} ends at {position + len(content)}, {length - len(content)} bytes before what was "
                "asked for does"
            )
        return content

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        key = "version" if self._by_version else "e_tag"
        mode: Any = "create" if replaces is None else {key: replaces}
        answer = obstore.put_async(self._once, checked(name), bytes(content), mode=mode, use_multipart=False)
        try:
            result = await self._ask(name, answer)
        except ObjectAbsent as error:
            raise ObjectChanged(f"{self._url}/{name} is gone, so that it was not replaced") from error
        return ObjectInfo(len(content), self._tag(result))

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        gone = False
        written = 0
        own_fault: Exception | None = None

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal written, own_fault
            try:
                async for piece in _of_size(parts(), self._part_bytes):
                    if gone:
                        raise ObjectStoreError(f"{self._url}/{name}: the upload was given up")
                    written += len(piece)
                    yield piece
            except Exception as error:
                own_fault = error
                raise

        upload = asyncio.ensure_future(
            self._ask(
                name,
                obstore.put_async(
                    self._parts(),
                    checked(name),
                    pieces(),
                    use_multipart=True,
                    chunk_size=self._part_bytes,
                    max_concurrency=self._parts_in_flight,
                ),
            )
        )
        try:
            result = await asyncio.shield(upload)
        except asyncio.CancelledError:
            gone = True  # obstore gives an upload up when its parts end with an error, but not when it is cancelled
            await asyncio.wait([upload])
            raise
        except ObjectStoreError as error:
            if own_fault is not None:
                raise own_fault from None
            if isinstance(error, ObjectAbsent):  # S3 answers so for an upload that was ended, or completed before
                raise ObjectStoreUnavailable(
                    f"{self._url}/{name}: the store does not know the upload any more; all of it is to be sent again"
                ) from error
            raise
        return ObjectInfo(written, self._tag(result))

    async def info(self, name: str) -> ObjectInfo:
        try:
            found = await self._ask(name, obstore.head_async(self._once, checked(name)))
        except ObjectAbsent:
            # The answer to HEAD has no body: it may as well be the bucket that is absent. That to GET says which.
            await self._ask(name, obstore.get_range_async(self._once, name, start=0, length=1))
            raise
        return ObjectInfo(found["size"], self._tag(found))

    async def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), DELETED_AT_ONCE_MAX):
            some = [checked(name) for name in names[start : start + DELETED_AT_ONCE_MAX]]
            try:
                await self._ask(some[0], obstore.delete_async(self._once, some))
            except ObjectAbsent:
                for name in some:  # a store without bulk deletion: it stopped at the first that is not there
                    try:
                        await self._ask(name, obstore.delete_async(self._once, name))
                    except ObjectAbsent:
                        continue

    async def page_for_upkeep(self, prefix: str, after: str = "") -> list[ListedObject]:
        folder = checked_folder(prefix) or None
        pages = obstore.list(self._once, folder, offset=after or None, chunk_size=PAGE_OBJECTS_MAX)

        async def first() -> list[ListedObject]:
            async for page in pages:
                return [
                    ListedObject(found["path"], found["size"], int(found["last_modified"].timestamp() * 1000))
                    for found in page
                ]
            return []

        return await self._ask(prefix, first())

    async def _ask(self, name: str, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except ObjectStoreError:
            raise
        except Exception as error:
            raise translated(f"{self._url}/{name}", error) from error

    def _tag(self, found: Any) -> str:
        return str(found["version"] if self._by_version else found["e_tag"])


def translated(place: str, error: Exception) -> ObjectStoreError:
    """The meaning of obstore's error. It tells a bucket that is gone from an object that is."""
    text = str(error)
    code = next(iter(_CODE.findall(text)), "")
    if remedy := REFUSALS.get(code):
        return ObjectStoreRefused(f"{place}: {code}: {remedy}")
    status = next((int(one or other) for one, other in _STATUS.findall(text)), 0)
    said = f"{place}: {_shortened(text)}"
    if any(part in text for part in MACHINES_OWN):
        said += f"; {NONE_SET}"
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectAbsent(f"{place}: there is no such object")
    if isinstance(error, AlreadyExistsError):
        return ObjectExists(f"{place} is there already")
    if isinstance(error, PreconditionError) or status == 412:
        return ObjectChanged(f"{place} is not the object any more that was to be replaced")
    if code in ("SlowDown", "TooManyRequests", "ThrottlingException") or status in (429, 503):
        return ObjectStoreThrottled(f"{place}: the store asks for fewer requests ({code or status})")
    if status == 416:
        return ObjectTooShort(f"{place} ends before what was asked for does")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (400, 401, 403):
        return ObjectStoreRefused(f"{said}; check the credentials, their rights and the clock")
    if re.search(r"\b(?:Timed ?Out|timed ?out|timeout)\b", text):
        return ObjectStoreTimedOut(f"{place}: no answer in time")
    return ObjectStoreUnavailable(said)


def coalesced(ranges: Sequence[ObjectRange]) -> list[ObjectRange]:
    """Spans that cover the ranges, in order, those near each other in one."""
    spans: list[ObjectRange] = []
    for position, length in sorted(ranges):
        if spans and position <= spans[-1].position + spans[-1].length + COALESCED_BYTES:
            begin, covered = spans[-1]
            spans[-1] = ObjectRange(begin, max(covered, position + length - begin))
        else:
            spans.append(ObjectRange(position, length))
    return spans


def _shortened(text: str) -> str:
    """The first line, which says what happened; obstore puts the whole error in Rust's words below it."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _TEXT_MAX else f"{line[:_TEXT_MAX]}…"


def _retries(number: int, config: ObjectStoreConfig, backoff: dict[str, Any]) -> dict[str, Any]:
    return {"max_retries": number, "retry_timeout": timedelta(seconds=config.retry_seconds), "backoff": backoff}


async def _of_size(parts: AsyncIterator[Buffer], size_bytes: int) -> AsyncIterator[bytes]:
    """The same bytes in pieces of one size, but for the last; each is copied once. A part that was taken is not changed
    any more."""
    pending: list[memoryview] = []
    missing = size_bytes
    async for part in parts:
        left = memoryview(part).cast("B")
        while len(left) >= missing:
            yield b"".join([*pending, left[:missing]])
            left = left[missing:]
            pending, missing = [], size_bytes
        if left:
            pending.append(left)
            missing -= len(left)
    if pending:
        yield b"".join(pending)
