"""The S3 server that tests, demos and benches share: it counts, it goes away, and it comes back with its objects."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tools.s3_server import (
    CREDENTIALS,
    RECEIVED_AT_ONCE_BYTES,
    S3Server,
    operation_of,
    received,
    s3_server,
)

from mainstem.model import Buffer
from mainstem.pipeline.embedded.control_group import NAME, make_group
from mainstem.pipeline.embedded.spare_time import half_of
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectStoreUnavailable
from mainstem.storage.object_stores.urls import parsed_url, plain_store

BUCKET = "mainstem-tests"
PART_BYTES = ObjectStoreConfig().part_bytes


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server(BUCKET) as server:
        yield server


def store_of(server: S3Server) -> ObjectStore:
    config = ObjectStoreConfig(endpoint=server.endpoint, options=CREDENTIALS, connect_timeout_seconds=PATIENCE_SECONDS)
    return plain_store(parsed_url(f"s3://{BUCKET}/there"), config)


def test_it_counts_requests_by_the_names_that_are_charged(server: S3Server) -> None:
    async def story() -> None:
        store = store_of(server)
        await store.write("one", b"x" * 1000)
        await store.read("one", [ObjectRange(10, 100)])
        await store.info("one")
        await store.delete(["one"])

    before = server.counts()
    asyncio.run(story())
    counts = server.counts().since(before)
    assert counts.requests == {"PutObject": 1, "GetObject": 1, "HeadObject": 1, "DeleteObjects": 1}
    assert counts.received_bytes >= 1000
    assert counts.sent_bytes >= 100


@pytest.mark.parametrize(
    ("method", "query", "operation"),
    [
        ("POST", "uploads=", "CreateMultipartUpload"),
        ("PUT", "partNumber=1&uploadId=x", "UploadPart"),
        ("POST", "uploadId=x", "CompleteMultipartUpload"),
        ("DELETE", "uploadId=x", "AbortMultipartUpload"),
        ("POST", "delete", "DeleteObjects"),
        ("GET", "list-type=2&prefix=a", "ListObjectsV2"),
    ],
)
def test_an_operation_is_told_by_its_query(method: str, query: str, operation: str) -> None:
    assert operation_of(method, query) == operation


def test_it_goes_away_and_comes_back_with_its_objects(server: S3Server) -> None:
    async def story() -> None:
        store = store_of(server)
        await store.write("two", b"kept")
        server.go_away()
        with pytest.raises(ObjectStoreUnavailable):
            await store.info("two")
        server.come_back()
        assert bytes((await store.read("two", [ObjectRange(0, 4)]))[0]) == b"kept"

    asyncio.run(story())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells the niceness of threads in /proc")
def test_an_idle_server_is_idle_work_with_all_of_its_threads_and_nice_with_its_session() -> None:
    with s3_server(BUCKET, idle=True) as server:
        threads = list(Path(f"/proc/{server.pid}/task").iterdir())
        niceness = [(thread / "stat").read_text().rpartition(")")[2].split()[16] for thread in threads]
        assert len(threads) > 1, "the one that listens is not the first"
        assert set(niceness) == {"19"}
        groups = Path(f"/proc/{server.pid}/cgroup").read_text().splitlines()
        if make_group() is not None:
            assert any(group.endswith(f"/{NAME}") for group in groups)
        else:
            assert {os.sched_getscheduler(int(thread.name)) for thread in threads} == {os.SCHED_IDLE}
        assert {frozenset(os.sched_getaffinity(int(thread.name))) for thread in threads} == {
            half_of(os.sched_getaffinity(0))
        }
        assert os.getsid(server.pid) == server.pid
        autogroup = Path(f"/proc/{server.pid}/autogroup")
        told = autogroup.read_text() if autogroup.exists() else ""
        assert not told or told.split()[-1] == "19"


class AskedBody(io.BytesIO):
    """Remembers for how much at a time it was asked."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.asked: list[int] = []

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        self.asked.append(size)
        return super().read(size)


@pytest.mark.parametrize("came", [0, 17, RECEIVED_AT_ONCE_BYTES, 2 * RECEIVED_AT_ONCE_BYTES + 5])
def test_a_body_is_received_a_little_at_a_time(came: int) -> None:
    for missing in (0, 1):  # the second was sent by somebody who is gone
        content = os.urandom(came)
        body = AskedBody(content)
        assert received(body, came + missing) == content
        assert max(body.asked, default=0) <= RECEIVED_AT_ONCE_BYTES
        assert len(body.asked) == -(-came // RECEIVED_AT_ONCE_BYTES) + missing


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells in /proc which files are open")
def test_large_objects_lie_in_its_memory_and_not_on_a_disk(server: S3Server) -> None:
    async def parts() -> AsyncIterator[Buffer]:
        for _ in range(2):
            yield bytes(PART_BYTES)

    async def story() -> None:
        await store_of(server).write("large", bytes(PART_BYTES))
        await store_of(server).write_parts("larger", parts)

    asyncio.run(story())
    opened = Path(f"/proc/{server.pid}/fd").iterdir()
    files = [(one.resolve(), one.stat().st_size) for one in opened if one.is_file() and int(one.name) > 2]
    assert files == []


def test_a_light_server_has_what_came_in_parts() -> None:
    parts = [bytes([number]) * size for number, size in enumerate((PART_BYTES, PART_BYTES, 17))]

    async def pieces() -> AsyncIterator[Buffer]:
        for part in parts:
            yield part

    async def story(store: ObjectStore) -> None:
        written = await store.write_parts("large", pieces)
        assert (await store.info("large")).size_bytes == written.size_bytes == sum(map(len, parts))
        whole = b"".join(parts)
        for position, length in ((0, len(whole)), (PART_BYTES - 3, 10), (2 * PART_BYTES - 1, 18), (5, 1)):
            (found,) = await store.read("large", [ObjectRange(position, length)])
            assert bytes(found) == whole[position : position + length]
        await store.write("small", b"moto's")
        await store.delete(["large", "small"])
        for name in ("large", "small"):
            with pytest.raises(ObjectAbsent):
                await store.info(name)

    with s3_server(BUCKET, light=True) as server:
        asyncio.run(story(store_of(server)))
        assert server.counts().requests["UploadPart"] == len(parts)
