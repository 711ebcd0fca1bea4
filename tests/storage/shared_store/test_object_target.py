"""Objects that are written while they are made: bounded memory, and nothing visible of one that fails."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually
from tools.s3_server import CREDENTIALS, s3_server

from mainstem.model import Buffer
from mainstem.ports import ObjectInfo
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectStoreOutage, ObjectStoreUnavailable
from mainstem.storage.object_stores.local import LocalObjectStore
from mainstem.storage.shared_store.announced_files import AnnouncedFiles
from mainstem.storage.shared_store.blocking_store import BlockingStore
from mainstem.storage.shared_store.object_target import ObjectTarget, UploadBroken
from mainstem.storage.shared_store.shared_store import SharedStore
from mainstem.storage.store_files.write_pace import WritePace

PART_BYTES = 1000


class Stumbling(LocalObjectStore):
    """A directory whose uploads fail behind so many parts, and that says which parts came."""

    def __init__(self, directory: Path, fails_behind: int) -> None:
        super().__init__(directory)
        self.fails_behind = fails_behind
        self.parts: list[int] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    async def write_parts(self, name: str, parts: Callable[[], AsyncIterator[Buffer]]) -> ObjectInfo:
        async def counted() -> AsyncIterator[Buffer]:
            async for part in parts():
                assert self.goes_on.wait(PATIENCE_SECONDS)
                if len(self.parts) == self.fails_behind:
                    raise ObjectStoreUnavailable(f"{name}: out")
                self.parts.append(len(part))
                yield part

        return await super().write_parts(name, counted)


def objects(root: Path) -> list[str]:
    """All files, finished or not."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_parts_are_of_one_size_and_the_object_of_all_of_them(tmp_path: Path) -> None:
    store = Stumbling(tmp_path, fails_behind=99)
    content = bytes(range(256)) * 10
    with BlockingStore(store, part_bytes=PART_BYTES) as blocking:
        target = ObjectTarget(blocking, "a", WritePace())
        for start in range(0, len(content), 300):
            target.write(content[start : start + 300])
        target.finish()
    assert (tmp_path / "a").read_bytes() == content
    assert store.parts == [1000, 1000, 560]


def test_a_writer_waits_for_the_store(tmp_path: Path) -> None:
    """However slow the store is, two parts are on their way at the most, and the writer holds a third."""
    store = Stumbling(tmp_path, fails_behind=99)
    store.goes_on.clear()
    written: list[int] = []

    def write() -> None:
        with BlockingStore(store, part_bytes=PART_BYTES) as blocking:
            target = ObjectTarget(blocking, "a", WritePace())
            for _ in range(10):
                target.write(bytes(PART_BYTES))
                written.append(PART_BYTES)
                if len(written) == 2:
                    two.set()
            target.finish()

    two = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    assert two.wait(PATIENCE_SECONDS)
    writer.join(0.2)
    assert len(written) <= 2
    store.goes_on.set()
    writer.join(PATIENCE_SECONDS)
    assert (tmp_path / "a").stat().st_size == 10 * PART_BYTES


@pytest.mark.parametrize("fails_behind", [0, 1, 3])
def test_an_outage_ends_the_upload_and_nothing_of_it_is_left(tmp_path: Path, fails_behind: int) -> None:
    with BlockingStore(Stumbling(tmp_path, fails_behind), part_bytes=PART_BYTES) as blocking:
        target = ObjectTarget(blocking, "runs/a", WritePace())
        with pytest.raises(ObjectStoreOutage, match="runs/a: out"):
            target.write(bytes(100 * PART_BYTES))
        target.abandon()
    assert objects(tmp_path) == []


def test_an_outage_behind_the_last_write_shows_when_the_object_is_finished(tmp_path: Path) -> None:
    with BlockingStore(Stumbling(tmp_path, fails_behind=1), part_bytes=PART_BYTES) as blocking:
        target = ObjectTarget(blocking, "a", WritePace())
        target.write(bytes(PART_BYTES + 1))
        with pytest.raises(ObjectStoreOutage):
            target.finish()
        target.abandon()
    assert objects(tmp_path) == []


def test_a_store_that_has_less_than_was_sent_is_noticed(tmp_path: Path) -> None:
    class Forgetful(LocalObjectStore):
        async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
            return await super().write(name, memoryview(content)[1:], replaces=replaces)

    with BlockingStore(Forgetful(tmp_path), part_bytes=PART_BYTES) as blocking:
        target = ObjectTarget(blocking, "a", WritePace())
        target.write(b"four")
        with pytest.raises(UploadBroken, match="a has 3 bytes in the store, 4 were sent"):
            target.finish()


def test_writing_is_paced(tmp_path: Path) -> None:
    clock = FakeClock()
    with BlockingStore(LocalObjectStore(tmp_path), part_bytes=PART_BYTES) as blocking:
        target = ObjectTarget(blocking, "a", WritePace(PART_BYTES, clock.monotonic, clock.advance))
        target.write(bytes(3 * PART_BYTES // 2))
        target.finish()
    assert clock.monotonic() == pytest.approx(1.5)


def test_no_file_is_begun_that_is_not_announced(tmp_path: Path) -> None:
    asked: list[tuple[int, list[str]]] = []
    with BlockingStore(LocalObjectStore(tmp_path), part_bytes=PART_BYTES) as blocking:
        files = AnnouncedFiles(blocking, lambda group, names: asked.append((group, list(names))))
        with pytest.raises(AssertionError, match="not announced"):
            files.open("runs/a.run")
        files.announce(3, ["a.run", "b.run"])
        files.announce(3, ["b.run"])
        files.announce(3, ["b.run", "orders/0/unique/00000000000000000007.log"])
        for path in ("runs/a.run", "queues/orders/0/unique/00000000000000000007.extents"):
            target = files.open(path)
            target.write(b"content")
            target.finish()
    assert asked == [(3, ["a.run", "b.run"]), (3, ["orders/0/unique/00000000000000000007.log"])]
    assert objects(tmp_path) == [
        "groups/3/files/queues/orders/0/unique/00000000000000000007.extents",
        "groups/3/files/runs/a.run",
    ]


@pytest.fixture(scope="module")
def s3() -> Iterator[SharedStore]:
    with s3_server("shared") as server:
        config = ObjectStoreConfig(endpoint=server.endpoint, options=CREDENTIALS, part_bytes=5 << 20)
        yield SharedStore(url="s3://shared/prefix", folder="cluster", config=config)


def test_s3_has_the_same_bytes_whether_in_one_request_or_in_parts(s3: SharedStore) -> None:
    content = bytes(range(256)) * (11 << 12)  # 11 MiB
    with BlockingStore.open(s3) as blocking:
        for name, size in (("small", 1 << 20), ("large", len(content)), ("whole", 10 << 20)):
            target = ObjectTarget(blocking, name, WritePace())
            target.write(memoryview(content)[:size])
            target.finish()
            assert blocking.begin_reading(name, len(content)).result() == (size, content[:size])


def test_an_abandoned_upload_to_s3_leaves_no_object_and_no_parts(s3: SharedStore) -> None:
    bucket = f"{s3.config.endpoint}/shared"

    def listed(what: str) -> bool:
        with urllib.request.urlopen(f"{bucket}?{what}") as answer:
            return b"prefix/cluster/abandoned" in answer.read()

    with BlockingStore.open(s3) as blocking:
        target = ObjectTarget(blocking, "abandoned", WritePace())
        target.write(bytes(11 << 20))
        eventually(lambda: listed("uploads"), what="an upload that has begun")
        target.abandon()
    assert not listed("uploads")
    assert not listed("list-type=2")
