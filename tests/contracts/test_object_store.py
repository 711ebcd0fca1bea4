"""`ObjectStore`: the simulated one, a folder of one, a directory, S3 (moto's server), GCS (a stand-in for its XML API)
and, at length, a real HDFS keep the same contract."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from tests.fakes.clock import LoopClock
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore, in_bad_weather
from tests.fakes.simulated_loop import SimulatedLoop
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.object_stores.gcs_stand_in import gcs_server
from tests.storage.object_stores.servers import hdfs_server, s3_server

from mainstem.model import Buffer
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectStoreError,
    ObjectTooShort,
    ReplaceUnsupported,
)
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.object_stores.urls import parsed_url, plain_store

Story = Callable[[ObjectStore], Coroutine[None, None, None]]

PART_BYTES = 5 << 20
"""The least that S3 takes."""


class Subject(ABC):
    replaces = True

    @abstractmethod
    def store(self) -> ObjectStore:
        """A store of its own, in which nothing is. Called in the event loop in which it is used."""

    def play(self, story: Coroutine[None, None, None]) -> None:
        asyncio.run(story)


class Simulated(Subject):
    def store(self) -> ObjectStore:
        return SimulatedObjectStore(SimulatedBucket(LoopClock(), random.Random(1)))


class InFolder(Subject):
    """A folder of a store, which has other objects in other folders."""

    def store(self) -> ObjectStore:
        bucket = SimulatedBucket(LoopClock(), random.Random(1))
        for name in ("a", "a/b", "cluste", "cluster-2/a", "clusters/a", "z"):
            bucket.put(name, b"another's")
        return StoreFolder(SimulatedObjectStore(bucket), "cluster")


class AtUrl(Subject):
    """One of those that a URL names."""

    def __init__(self, url: str, options: dict[str, str], endpoint: str = "", *, replaces: bool = True) -> None:
        self._url = url
        self._config = ObjectStoreConfig(endpoint=endpoint, options=options, part_bytes=PART_BYTES)
        self._stores = 0
        self.replaces = replaces

    def store(self) -> ObjectStore:
        self._stores += 1
        url = f"{self._url}/store{self._stores}"
        if "://" not in url:
            Path(url).mkdir()
        return plain_store(parsed_url(url), self._config)


class InBadWeather(Subject):
    """The simulated one, with troubles that pass, behind what guards a store; on simulated time."""

    def store(self) -> ObjectStore:
        return in_bad_weather(LoopClock(), PATIENCE_SECONDS)

    def play(self, story: Coroutine[None, None, None]) -> None:
        loop = SimulatedLoop()
        try:
            loop.run_until_complete(story)
        finally:
            loop.close()


@contextmanager
def _s3() -> Iterator[Subject]:
    with s3_server() as server:
        yield AtUrl(f"s3://{server.bucket}", server.options, server.endpoint)


@contextmanager
def _gcs() -> Iterator[Subject]:
    with gcs_server("mainstem-tests") as server:
        yield AtUrl(f"gs://{server.bucket}", {"bearer_token": "test"}, server.endpoint)


@contextmanager
def _in_bad_weather() -> Iterator[Subject]:
    yield InBadWeather()


@contextmanager
def _hdfs() -> Iterator[Subject]:
    with hdfs_server() as name_node:
        yield AtUrl(f"{name_node}/mainstem", {}, replaces=False)


def _subject(kind: str, directory: Path) -> AbstractContextManager[Subject]:
    if kind == "simulated":
        return nullcontext(Simulated())
    if kind == "folder":
        return nullcontext(InFolder())
    if kind == "directory":
        return nullcontext(AtUrl(str(directory), {}))
    return {"s3": _s3, "gcs": _gcs, "bad weather": _in_bad_weather, "hdfs": _hdfs}[kind]()


@pytest.fixture(
    scope="module",
    params=[
        "simulated",
        "folder",
        "directory",
        "s3",
        "gcs",
        "bad weather",
        pytest.param("hdfs", marks=pytest.mark.long),
    ],
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with _subject(request.param, tmp_path_factory.mktemp("stores")) as subject:
        yield subject


@pytest.fixture
def tell(subject: Subject) -> Callable[[Story], None]:
    async def told(story: Story) -> None:
        await asyncio.wait_for(story(subject.store()), PATIENCE_SECONDS)

    return lambda story: subject.play(told(story))


async def whole(store: ObjectStore, name: str) -> bytes:
    size = (await store.info(name)).size_bytes
    return bytes((await store.read(name, [ObjectRange(0, size)]))[0]) if size else b""


def test_what_was_written_is_read_in_any_ranges_in_their_order(tell: Callable[[Story], None]) -> None:
    content = bytes(range(256)) * 4096

    async def story(store: ObjectStore) -> None:
        info = await store.write("a/b/c.run", content)
        assert info.size_bytes == len(content)
        assert await store.info("a/b/c.run") == info
        ranges = [ObjectRange(1_000_000, 500), ObjectRange(0, 10), ObjectRange(5, 10), ObjectRange(len(content) - 1, 1)]
        found = await store.read("a/b/c.run", ranges)
        assert [bytes(piece) for piece in found] == [content[at : at + length] for at, length in ranges]

    tell(story)


def test_an_empty_object_is_one(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        assert (await store.write("empty", b"")).size_bytes == 0
        assert (await store.info("empty")).size_bytes == 0

    tell(story)


def test_an_object_is_created_once_and_stays_as_it_was(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        info = await store.write("manifest/7", b"first")
        with pytest.raises(ObjectExists):
            await store.write("manifest/7", b"second")
        assert await whole(store, "manifest/7") == b"first"
        assert await store.info("manifest/7") == info

    tell(story)


def test_of_those_that_create_an_object_together_one_does(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        contents = [b"writer %d" % number for number in range(8)]
        outcomes = await asyncio.gather(
            *(store.write("manifest/8", content) for content in contents), return_exceptions=True
        )
        [won] = [content for content, outcome in zip(contents, outcomes, strict=True) if isinstance(outcome, tuple)]
        assert all(isinstance(outcome, ObjectStoreError | tuple) for outcome in outcomes)
        assert await whole(store, "manifest/8") == won

    tell(story)


def test_an_object_is_replaced_as_long_as_it_is_the_one_that_was_meant(
    subject: Subject, tell: Callable[[Story], None]
) -> None:
    async def story(store: ObjectStore) -> None:
        first = await store.write("pointer", b"to 1")
        if not subject.replaces:
            with pytest.raises(ReplaceUnsupported):
                await store.write("pointer", b"to 2", replaces=first.tag)
            return
        second = await store.write("pointer", b"to 2", replaces=first.tag)
        assert second.tag != first.tag
        assert await store.info("pointer") == second
        with pytest.raises(ObjectChanged):
            await store.write("pointer", b"to 3", replaces=first.tag)
        assert await whole(store, "pointer") == b"to 2"
        await store.delete(["pointer"])
        with pytest.raises(ObjectChanged):
            await store.write("pointer", b"to 4", replaces=second.tag)
        with pytest.raises(ObjectAbsent):
            await store.info("pointer")

    tell(story)


def test_of_those_that_replace_an_object_together_one_does(subject: Subject, tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        if not subject.replaces:
            return
        for number in range(4):
            first = await store.write(f"pointer/{number}", b"to 0")
            contents = [b"writer %d" % writer for writer in range(8)]
            outcomes = await asyncio.gather(
                *(store.write(f"pointer/{number}", content, replaces=first.tag) for content in contents),
                return_exceptions=True,
            )
            [won] = [content for content, outcome in zip(contents, outcomes, strict=True) if isinstance(outcome, tuple)]
            assert all(isinstance(outcome, ObjectStoreError | tuple) for outcome in outcomes)
            assert await whole(store, f"pointer/{number}") == won

    tell(story)


def parts_of(*parts: Buffer, fails_behind: bool = False) -> Callable[[], AsyncIterator[Buffer]]:
    async def begin() -> AsyncIterator[Buffer]:
        for part in parts:
            yield part
        if fails_behind:
            raise KeyError("the source")

    return begin


def test_a_large_object_is_written_in_parts_of_any_size(tell: Callable[[Story], None]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate((1, PART_BYTES - 1, 2 * PART_BYTES, 17, PART_BYTES))]

    async def story(store: ObjectStore) -> None:
        info = await store.write_parts("large", parts_of(*parts))
        assert info.size_bytes == sum(map(len, parts))
        assert await store.info("large") == info
        assert await whole(store, "large") == b"".join(parts)

    tell(story)


def test_an_upload_whose_source_fails_leaves_no_object_and_the_source_says_why(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        with pytest.raises(KeyError, match="the source"):
            await store.write_parts("half/of/it", parts_of(bytes(PART_BYTES), b"more", fails_behind=True))
        with pytest.raises(ObjectAbsent):
            await store.info("half/of/it")
        assert await store.page_for_upkeep("half") == []

    tell(story)


def test_an_upload_that_is_cancelled_leaves_no_object(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        asked = asyncio.Event()
        goes_on = asyncio.Event()

        async def source() -> AsyncIterator[Buffer]:
            yield bytes(PART_BYTES)
            asked.set()
            await goes_on.wait()
            yield b"the rest"

        upload = asyncio.ensure_future(store.write_parts("half/of/it", source))
        await asked.wait()
        upload.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await upload
        with pytest.raises(ObjectAbsent):
            await store.info("half/of/it")

    tell(story)


def test_what_is_not_there_is_absent_in_every_way(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        await store.write("there/is", b"one")
        for name in ("there/is-not", "nor/this", "there"):
            with pytest.raises(ObjectAbsent):
                await store.info(name)
        with pytest.raises(ObjectAbsent):
            await store.read("nor/this", [ObjectRange(0, 1)])

    tell(story)


def test_a_range_beyond_the_end_is_refused_whole(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        await store.write("short", b"0123456789")
        for ranges in ([ObjectRange(5, 6)], [ObjectRange(10, 1)], [ObjectRange(0, 5), ObjectRange(100, 5)]):
            with pytest.raises(ObjectTooShort):
                await store.read("short", ranges)

    tell(story)


def test_deleting_takes_what_is_there_and_does_not_mind_the_rest(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        await store.delete([])
        for number in range(4):
            await store.write(f"d/{number}", b"content")
        await store.delete(["d/never", "d/0", "elsewhere/never", "d/2", "d/0"])
        for number, there in enumerate((False, True, False, True)):
            if there:
                assert await whole(store, f"d/{number}") == b"content"
            else:
                with pytest.raises(ObjectAbsent):
                    await store.info(f"d/{number}")

    tell(story)


def test_pages_have_all_objects_below_a_folder_once_and_in_order(tell: Callable[[Story], None]) -> None:
    names = ["p/A", "p/a-b", "p/a.c", "p/a/b.c", "p/a/b/c", "p/a/b0", "p/a0", "p/b/1", "p/b/2"]

    async def story(store: ObjectStore) -> None:
        for name in [*names, "pp/other", "p0"]:
            await store.write(name, name.encode())
        found = await store.page_for_upkeep("p")
        assert [each.name for each in found] == names
        assert all(each.size_bytes == len(each.name) and each.modified_ms > 1_600_000_000_000 for each in found)
        for number, name in enumerate(names):
            assert [each.name for each in await store.page_for_upkeep("p", after=name)] == names[number + 1 :]
        assert await store.page_for_upkeep("nothing") == []

    tell(story)


def test_pages_of_the_whole_store_pass_over_folders(tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        names = ["top-a", "top-b/1/x", "top-b/2", "top-b0/1", "top-c"]
        for name in names:
            await store.write(name, b"content")
        found: list[str] = []
        while page := await store.page_for_upkeep("", found[-1] if found else ""):
            found += [each.name for each in page]
        assert [name for name in found if name.startswith("top-")] == names
        assert found == sorted(found)
        behind = await store.page_for_upkeep("", after="top-b0")
        assert [each.name for each in behind][:2] == ["top-b0/1", "top-c"]

    tell(story)


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/./b", ".hidden", "a b", "ä", "x" * 250, "a/" * 460 + "a"]
)
def test_names_that_not_every_store_can_have_are_refused_by_all(name: str, tell: Callable[[Story], None]) -> None:
    async def story(store: ObjectStore) -> None:
        with pytest.raises(ValueError, match="cannot be the name"):
            await store.write(name, b"")
        with pytest.raises(ValueError, match="cannot be the name"):
            await store.info(name)

    tell(story)
