"""The uploaded object is the file as it was checked, under another name, and readers find nothing wrong with it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import msgspec
import numpy
import pytest
from tests.fakes.clock import LoopClock
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.queue_store.merges import GROUP, MergeStore
from tests.storage.queue_store.runs import Batch, make_batch
from tools.s3_server import CREDENTIALS, s3_server

from mainstem.model import Buffer
from mainstem.pipeline.link.node_allowance import ALLOWED_BYTES, NodeAllowance
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.ports import ObjectInfo, ObjectRange
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.aborted import ABORTED_ROW
from mainstem.storage.merging.merge_inputs import InputDamaged, read_aborted
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectStoreOutage, ObjectStoreUnavailable
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import (
    FileKind,
    StoreFile,
    has_index_beside,
    index_path_of,
    kind_of,
    path_of,
    paths_of,
    segment_name,
)
from mainstem.storage.tiering.uploading import ONE_REQUEST_BYTES, WINDOW_BYTES, remote_name, upload
from mainstem.storage.verifying.file_check import check_file

LINES = MergeLines(packed_bytes=400_000, level_one_bytes=1 << 30, wait_bytes_max=1 << 30, level_two_bytes=1 << 30)
SEGMENT_BYTES = 20_000_000
"""Larger than what goes in one request."""


ABORTED = numpy.array([(1, 9, 0, 1, 2), (1, -1, -1, 2, 3), (50, 9, 0, 40, 30), (50, 8, 30, 60, 61)], ABORTED_ROW)
"""Transactions of the first small queue, and of the large one."""


class Uploads:
    """Merged files of a directory, and a bucket."""

    def __init__(self, root: Path) -> None:
        self.local = MergeStore(root / "store")
        self.remote_root = root / "remote"
        self.bucket = SimulatedBucket(LoopClock(), random.Random(1))
        self.bucket.weather.timeout_seconds = 0.001
        self.store = SimulatedObjectStore(self.bucket)
        self.batches = self._batches()
        topic = self.local.facts[0]
        self.local.facts[0] = type(topic)(topic.name, topic.retention_class, SEGMENT_BYTES)
        self.files = self.local.merge([self.local.run(0, self.batches, ABORTED)], LINES)

    @staticmethod
    def _batches() -> list[Batch]:
        small = [make_batch(queue, offset, size=5_000) for queue in range(1, 40) for offset in range(3)]
        large = [make_batch(50, offset * 2, records=2, size=90_000) for offset in range(250)]
        assert sum(len(batch.data) for batch in large) > 2 * WINDOW_BYTES
        return [*small, *large]

    def file(self, kind: FileKind) -> StoreFile:
        return max((file for file in self.files if kind_of(file.name) is kind), key=lambda file: file.bytes)

    async def upload(self, file: StoreFile, name: str) -> StoreFile:
        await upload(self.store, self.local.input(file.name), name, file_objects(GROUP, name))
        size = file.bytes
        if has_index_beside(file.name) and not has_index_beside(name):
            size += (self.local.root / index_path_of(file.name)).stat().st_size
        return msgspec.structs.replace(file, name=name, bytes=size)

    def fetch(self, name: str) -> None:
        """Put the objects of a file where a queue store would have it."""
        for path, one in zip(paths_of(name), file_objects(GROUP, name), strict=True):
            target = self.remote_root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.bucket.objects[one].content)


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Uploads:
    found = Uploads(tmp_path_factory.mktemp("uploads"))
    assert {kind_of(file.name) for file in found.files} == {FileKind.PACKED, FileKind.SEGMENT}
    for file in (found.file(FileKind.PACKED), found.file(FileKind.SEGMENT)):
        rows = read_aborted(found.local.input(file.name))
        mine = (ABORTED["queue_id"] >= file.first_queue) & (ABORTED["queue_id"] <= file.last_queue)
        assert rows.tolist() == ABORTED[mine].tolist()
        assert len(rows) or kind_of(file.name) is FileKind.PACKED
    assert found.file(FileKind.PACKED).bytes < ONE_REQUEST_BYTES < found.file(FileKind.SEGMENT).bytes
    return found


@pytest.fixture(autouse=True)
def _fair(uploads: Uploads) -> None:
    uploads.bucket.objects.clear()
    uploads.bucket.weather.down = False
    uploads.bucket.weather.failures = 0.0


def test_a_segment_of_one_object_is_the_one_that_a_merge_writes_as_one_file(uploads: Uploads, tmp_path: Path) -> None:
    """As in a shared store: whoever reads the one reads the other."""
    shared = MergeStore(tmp_path / "store")
    shared.facts = uploads.local.facts
    merged = shared.merge([shared.run(0, uploads.batches, ABORTED)], LINES, joined=True)
    (segment,) = (file for file in merged if kind_of(file.name) is FileKind.SEGMENT)
    moved = asyncio.run(uploads.upload(uploads.file(FileKind.SEGMENT), segment.name))
    assert moved == segment
    ((name, stored),) = uploads.bucket.objects.items()
    assert [name] == file_objects(GROUP, segment.name)
    assert stored.content == (shared.root / path_of(segment.name)).read_bytes()
    assert read_aborted(shared.input(segment.name)).tolist() == ABORTED[ABORTED["queue_id"] == 50].tolist()


def test_a_segment_of_one_object_is_uploaded_as_whole_as_it_is_on_the_disk(uploads: Uploads) -> None:
    file = uploads.file(FileKind.SEGMENT)
    name = remote_name(file.name, "joined", joined=True)
    assert kind_of(name) is FileKind.SEGMENT
    moved = asyncio.run(uploads.upload(file, name))
    (stored,) = uploads.bucket.objects.values()
    log, extents, *_kafkas = ((uploads.local.root / path).read_bytes() for path in paths_of(file.name))
    assert len(stored.content) == moved.bytes == len(log) + len(extents)
    assert stored.content[64 : 64 + len(log)] == log
    uploads.fetch(name)

    async def check() -> Sequence[object]:
        files = DiskFiles(uploads.remote_root)
        try:
            return await check_file(files, name, moved)
        finally:
            await files.close()

    assert asyncio.run(check()) == []


@pytest.mark.parametrize("kind", [FileKind.PACKED, FileKind.SEGMENT])
def test_every_byte_of_an_uploaded_file_is_what_its_description_and_indexes_say(
    uploads: Uploads, kind: FileKind
) -> None:
    file = uploads.file(kind)
    name = remote_name(file.name, "fresh")
    assert name != file.name
    assert kind_of(name) is kind

    async def story() -> list[object]:
        moved = await uploads.upload(file, name)
        assert sorted(uploads.bucket.objects) == sorted(file_objects(GROUP, name))
        uploads.fetch(name)
        files = DiskFiles(uploads.remote_root)
        try:
            return list(await check_file(files, name, moved))
        finally:
            await files.close()

    assert asyncio.run(story()) == []
    for path, one in zip(paths_of(file.name), file_objects(GROUP, name), strict=True):
        local, remote = (uploads.local.root / path).read_bytes(), uploads.bucket.objects[one].content
        assert len(local) == len(remote)
        states_name = path.endswith((".pack", ".extents"))
        assert (local == remote) is not states_name
        assert local[:-128] == remote[:-128], "all but the frames that state the name"


def test_a_file_under_the_name_of_another_is_found_out(uploads: Uploads) -> None:
    file = uploads.file(FileKind.PACKED)

    async def story() -> Sequence[object]:
        await uploads.upload(file, "one.pack")
        uploads.fetch("one.pack")
        packed = uploads.remote_root / "packed"
        (packed / "one.pack").rename(packed / "other.pack")
        files = DiskFiles(uploads.remote_root)
        try:
            return await check_file(files, "other.pack")
        finally:
            await files.close()

    (finding,) = asyncio.run(story())
    assert "another" in str(finding)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FileKind.PACKED, "damaged.pack"),
        (FileKind.SEGMENT, segment_name("t", 0, "u", 0)),
        (FileKind.SEGMENT, segment_name("t", 0, "u", 0, joined=True)),
    ],
)
@pytest.mark.parametrize("place", ["first extent", "last extent", "index", "end"])
def test_damage_is_named_and_not_uploaded(uploads: Uploads, kind: FileKind, name: str, place: str) -> None:
    file = uploads.file(kind)
    source = uploads.local.input(file.name)
    path = Path(source.index_path if place in ("index", "end") else source.path)
    whole = path.read_bytes()
    at = {
        "first extent": 100,
        "last extent": file.batch_bytes - 10,
        "index": len(whole) - 128 - 70,
        "end": len(whole) - 20,
    }[place]
    broken = bytearray(whole)
    broken[at] ^= 1
    path.write_bytes(broken)
    try:
        with pytest.raises(InputDamaged) as met:
            asyncio.run(uploads.upload(file, name))
        assert met.value.name == file.name
        assert str(path) in str(met.value)
    finally:
        path.write_bytes(whole)
    ends = (".pack", ".extents", ".seg")
    assert not any(one.endswith(ends) for one in uploads.bucket.objects), "what says where batches lie"


def test_a_store_that_is_out_is_told_from_damage_and_what_it_loses_from_success(uploads: Uploads) -> None:
    file = uploads.file(FileKind.SEGMENT)
    name = remote_name(file.name, "out")
    uploads.bucket.weather.down = True
    with pytest.raises(ObjectStoreOutage):
        asyncio.run(uploads.upload(file, name))
    uploads.bucket.weather.down = False
    asyncio.run(uploads.upload(file, name))
    assert len(uploads.bucket.objects) == 4


class Forgetful(SimulatedObjectStore):
    """Begins each object twice, as a guarded store does after a failure, and may lose what comes last."""

    def __init__(self, bucket: SimulatedBucket, *, loses: int = 0) -> None:
        super().__init__(bucket)
        self._loses = loses
        self._bucket_of = bucket

    async def write_parts(self, name, parts):  # type: ignore[no-untyped-def]  # as its base has it
        async for _part in parts():
            break
        content = b"".join([bytes(part) async for part in parts()])
        return self._bucket_of.put(name, content[: len(content) - self._loses])

    async def write(self, name, content, *, replaces=None):  # type: ignore[no-untyped-def]
        await super().write(name, content, replaces=replaces)
        return self._bucket_of.put(name, content[: len(content) - self._loses])


def test_an_object_that_is_begun_anew_has_all_of_it_once(uploads: Uploads) -> None:
    for kind, joined in ((FileKind.PACKED, False), (FileKind.SEGMENT, False), (FileKind.SEGMENT, True)):
        file = uploads.file(kind)
        name = remote_name(file.name, "again", joined=joined)
        asyncio.run(uploads.upload(file, name))
        once = {one: stored.content for one, stored in uploads.bucket.objects.items()}
        uploads.bucket.objects.clear()
        source, objects = uploads.local.input(file.name), file_objects(GROUP, name)
        asyncio.run(upload(Forgetful(uploads.bucket), source, name, objects))
        assert {one: stored.content for one, stored in uploads.bucket.objects.items()} == once
        asyncio.run(upload(uploads.store, source, name, objects))  # as a task that is played again does
        assert {one: stored.content for one, stored in uploads.bucket.objects.items()} == once
        uploads.bucket.objects.clear()
        with pytest.raises(StorageError, match="were sent"):
            asyncio.run(upload(Forgetful(uploads.bucket, loses=1), source, name, objects))
        uploads.bucket.objects.clear()


@pytest.mark.parametrize("joined", [False, True])
def test_the_allowance_is_asked_for_every_byte(uploads: Uploads, joined: bool) -> None:
    file = uploads.file(FileKind.SEGMENT)
    asked: list[int] = []
    name = remote_name(file.name, "paced", joined=joined)
    asyncio.run(upload(uploads.store, uploads.local.input(file.name), name, file_objects(GROUP, name), asked.append))
    assert sum(asked) == file.batch_bytes
    assert max(asked) <= WINDOW_BYTES
    uploads.bucket.weather.failures = 1.0
    with pytest.raises(ObjectStoreUnavailable):
        asyncio.run(uploads.upload(file, name))


def test_a_task_never_goes_through_more_at_once_than_its_node_allows_at_once(uploads: Uploads) -> None:
    """Otherwise the node's questions come all together, and the work behind them in one burst."""
    happened: list[str] = []

    class Node:
        def pace(self, size: int, *, upkeep: bool) -> None:
            happened.append("asked")

    class Watched(SimulatedObjectStore):
        async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
            async def watched() -> AsyncIterator[Buffer]:
                async for part in parts():
                    happened.append("taken")
                    yield part

            return await super().write_parts(name, watched)

    file = uploads.file(FileKind.SEGMENT)
    name = remote_name(file.name, "even")
    allow = NodeAllowance(cast(NodeLink, Node()))
    source, objects = uploads.local.input(file.name), file_objects(GROUP, name)
    asyncio.run(upload(Watched(uploads.bucket), source, name, objects, allow))
    assert happened.count("asked") == -(-file.batch_bytes // ALLOWED_BYTES)
    assert ("asked", "asked") not in pairwise(happened)


@pytest.mark.parametrize("joined", [False, True])
def test_s3_gets_a_segment_in_parts_and_the_rest_in_one_request_each(uploads: Uploads, joined: bool) -> None:
    pytest.importorskip("obstore")
    file = uploads.file(FileKind.SEGMENT)
    name = remote_name(file.name, "s3", joined=joined)
    objects = file_objects(GROUP, name)
    source = uploads.local.input(file.name)
    asyncio.run(uploads.upload(file, name))
    with s3_server("uploads") as server:
        config = ObjectStoreConfig(endpoint=server.endpoint, options=CREDENTIALS, part_bytes=5 << 20)
        store = open_object_store("s3://uploads/tier", config)
        before = server.counts()
        asyncio.run(upload(store, source, name, objects))
        requests = server.counts().since(before).requests

        async def content(one: str) -> bytes:
            size = (await store.info(one)).size_bytes
            return bytes((await store.read(one, [ObjectRange(0, size)]))[0])

        for one in objects:
            assert asyncio.run(content(one)) == uploads.bucket.objects[one].content
    assert requests.get("PutObject", 0) == (0 if joined else 3), "what lies beside it"
    sizes = [len(uploads.bucket.objects[one].content) for one in objects]
    assert requests["UploadPart"] == -(-sizes[0] // config.part_bytes) > 1
    assert requests["CompleteMultipartUpload"] == 1
