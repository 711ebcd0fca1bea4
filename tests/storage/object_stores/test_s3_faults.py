"""S3 over a wire and from a server that fail, through all that guards a store: what callers are told, and what lies in
the bucket afterwards."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.object_stores.faulty_wire import Answer, Fault, Wire, faulty_wire
from tests.storage.object_stores.faulty_world import CONTENT, PART_BYTES, SILENCE_SECONDS, WHOLE, World
from tests.storage.object_stores.servers import Server, s3_server

from mainstem.model import Buffer
from mainstem.ports import ObjectRange
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectExists,
    ObjectStoreDown,
    ObjectStoreOutage,
    ObjectStoreRefused,
    ObjectStoreThrottled,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
)
from mainstem.storage.object_stores.urls import open_object_store

NUMBERS = itertools.count()

Story = Callable[[World], Coroutine[None, None, None]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def tell(server: Server) -> Callable[[Story], None]:
    async def told(story: Story) -> None:
        async with faulty_wire(server.address) as wire, asyncio.timeout(PATIENCE_SECONDS):
            await story(World(server, wire, f"store{next(NUMBERS)}"))

    return lambda story: asyncio.run(told(story))


@pytest.mark.parametrize(
    "fault",
    [
        Answer(500, "InternalError"),
        Answer(503, "SlowDown"),
        Answer(429),
        Wire.ANSWER_LOST,
        Wire.REQUEST_CUT,
        Wire.SILENT,
    ],
    ids=str,
)
def test_an_object_is_written_once_and_whole_through_faults(fault: Fault, tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        world.wire.fails(fault, fault, method="PUT")
        store = world.store(request_timeout_seconds=SILENCE_SECONDS if fault is Wire.SILENT else 30)
        info = await store.write("a/b", CONTENT)
        assert info == await store.info("a/b")
        assert bytes((await store.read("a/b", WHOLE))[0]) == CONTENT
        puts = [seen for seen in world.wire.seen if seen.method == "PUT"]
        assert len(puts) == 3 or (fault is Wire.SILENT and len(puts) > 3)
        with pytest.raises(ObjectExists):  # the same bytes could be those of an attempt whose answer was lost
            await store.write("a/b", CONTENT[:-1])

    tell(story)


@pytest.mark.parametrize(
    "fault", [Answer(500, "InternalError"), Answer(503, "SlowDown"), Wire.ANSWER_CUT, Wire.SILENT], ids=str
)
def test_an_object_is_read_whole_through_faults(fault: Fault, tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        store = world.store(request_timeout_seconds=SILENCE_SECONDS if fault is Wire.SILENT else 30)
        await store.write("a/b", CONTENT)
        world.wire.fails(fault, fault, method="GET")
        assert bytes((await store.read("a/b", WHOLE))[0]) == CONTENT
        assert store.retrying.retries == 2 or (fault is Wire.SILENT and store.retrying.retries > 2)

    tell(story)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Answer(500, "InternalError"), ObjectStoreUnavailable),
        (Answer(503, "SlowDown"), ObjectStoreThrottled),
        (Answer(503), ObjectStoreThrottled),
        (Answer(429), ObjectStoreThrottled),
        (Wire.ANSWER_LOST, ObjectStoreUnavailable),
        (Wire.ANSWER_CUT, ObjectStoreUnavailable),
        (Wire.SILENT, ObjectStoreTimedOut),
    ],
    ids=str,
)
def test_each_fault_has_its_error(fault: Fault, error: type[Exception], tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        await world.plain().write("a/b", CONTENT)
        store = world.plain(request_timeout_seconds=SILENCE_SECONDS if fault is Wire.SILENT else 30)
        world.wire.always(fault)
        with pytest.raises(error):
            await store.read("a/b", WHOLE)
        asked = len(world.wire.seen)
        with pytest.raises(error):
            await store.read("a/b", WHOLE)
        assert len(world.wire.seen) == asked + 1  # the library tries nothing again by itself

    tell(story)


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AccessDenied", "grant reading, writing and deleting"),
        (403, "InvalidAccessKeyId", "set the credentials"),
        (403, "SignatureDoesNotMatch", "the secret key is wrong"),
        (403, "RequestTimeTooSkewed", "set the clock of this machine"),
        (400, "ExpiredToken", "renew them"),
        (403, "SomethingNew", "check the credentials, their rights and the clock"),
    ],
)
def test_what_no_retry_helps_against_is_asked_once_and_told_with_a_remedy(
    status: int, code: str, remedy: str, tell: Callable[[Story], None]
) -> None:
    async def story(world: World) -> None:
        world.wire.always(Answer(status, code))
        store = world.store()
        asks: tuple[Callable[[], Coroutine[None, None, object]], ...] = (
            lambda: store.write("a/b", CONTENT),
            lambda: store.read("a/b", WHOLE),
            lambda: store.delete(["a/b"]),
            lambda: store.page_for_upkeep("a"),
        )
        for number, ask in enumerate(asks, 1):
            with pytest.raises(ObjectStoreRefused, match=remedy):
                await ask()
            assert len(world.wire.seen) == number

    tell(story)


def test_a_bucket_that_is_gone_is_not_an_empty_one(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        store = open_object_store("s3://no-such-bucket/a", world.config)
        asks: tuple[Callable[[], Coroutine[None, None, object]], ...] = (
            lambda: store.info("a/b"),
            lambda: store.read("a/b", WHOLE),
            lambda: store.write("a/b", b""),
            lambda: store.delete(["a/b"]),
            lambda: store.page_for_upkeep("a"),
        )
        for ask in asks:
            with pytest.raises(ObjectStoreRefused, match="NoSuchBucket: there is no such bucket"):
                await ask()

    tell(story)


def test_an_object_that_the_store_has_lost_is_absent(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        store = world.store()
        await store.write("a/b", CONTENT)
        await world.plain().delete(["a/b"])
        for ask in (partial(store.read, "a/b", WHOLE), partial(store.info, "a/b")):
            with pytest.raises(ObjectAbsent):
                await ask()

    tell(story)


def test_a_store_that_says_nothing_is_left_alone_and_used_again_when_it_answers(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        await world.store().write("a/b", CONTENT)
        store = world.store(
            request_timeout_seconds=SILENCE_SECONDS, retry_seconds=0.001, failures_max=3, probe_seconds_max=0.2
        )
        world.wire.always(Wire.SILENT)
        for _ in range(3):
            with pytest.raises((ObjectStoreTimedOut, ObjectStoreDown)):
                await store.read("a/b", WHOLE)
        assert store.breaker.down
        asked = len(world.wire.seen)
        told = await asyncio.gather(*(store.read("a/b", WHOLE) for _ in range(50)), return_exceptions=True)
        assert {type(error) for error in told} <= {ObjectStoreDown, ObjectStoreTimedOut}
        assert len(world.wire.seen) <= asked + 1
        world.wire.fails()
        while store.breaker.down:
            try:
                await store.read("a/b", WHOLE)
            except ObjectStoreOutage:
                await asyncio.sleep(0.05)

    tell(story)


def test_a_server_that_is_gone_is_unavailable(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        async with faulty_wire(world.server.address) as wire:
            gone = world.plain(endpoint=wire.endpoint)
        with pytest.raises(ObjectStoreUnavailable):
            await gone.info("a/b")

    tell(story)


def parts(number: int) -> Callable[[], AsyncIterator[Buffer]]:
    async def begin() -> AsyncIterator[Buffer]:
        for place in range(number):
            yield bytes([place]) * PART_BYTES

    return begin


@pytest.mark.parametrize("fault", [Answer(500, "InternalError"), Answer(503, "SlowDown"), Wire.REQUEST_CUT], ids=str)
def test_a_part_that_fails_is_sent_again_alone(fault: Fault, tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        world.wire.fails(fault, method="PUT", target="partNumber=2")
        info = await world.store().write_parts("large", parts(3))
        assert info.size_bytes == 3 * PART_BYTES
        assert [bytes(piece) for piece in await world.store().read("large", [ObjectRange(PART_BYTES - 1, 2)])] == [
            b"\0\1"
        ]
        sent = [seen for seen in world.wire.seen if seen.method == "PUT"]
        assert len(sent) == 4
        assert await world.uploads() == 0

    tell(story)


def test_an_upload_that_fails_for_good_leaves_nothing_behind(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        world.wire.always(Answer(500, "InternalError"), method="PUT", target="partNumber=2")
        with pytest.raises(ObjectStoreUnavailable):
            await world.store(retry_seconds=0.5).write_parts("large", parts(3))
        world.wire.fails()
        with pytest.raises(ObjectAbsent):
            await world.store().info("large")
        assert await world.uploads() == 0

    tell(story)


@pytest.mark.parametrize(
    ("method", "target"), [("PUT", "partNumber=2"), ("POST", "uploadId=")], ids=["at a part", "at its end"]
)
def test_an_upload_that_the_store_knows_no_more_is_begun_anew(
    method: str, target: str, tell: Callable[[Story], None]
) -> None:
    """A bucket's rule has ended it, or it was completed and the answer to that was lost."""

    async def story(world: World) -> None:
        world.wire.fails(Answer(404, "NoSuchUpload"), method=method, target=target)
        with pytest.raises(ObjectStoreUnavailable, match="does not know the upload any more"):
            await world.plain().write_parts("large", parts(3))
        world.wire.fails(Answer(404, "NoSuchUpload"), method=method, target=target)
        store = world.store()
        info = await store.write_parts("large", parts(3))
        assert info.size_bytes == 3 * PART_BYTES
        assert info == await store.info("large")
        assert store.retrying.retries == 1

    tell(story)


def test_an_upload_that_is_cancelled_leaves_nothing_behind(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def source() -> AsyncIterator[Buffer]:
            yield bytes(PART_BYTES)
            begun.set()
            await goes_on.wait()
            yield bytes(PART_BYTES)
            yield b"the rest"

        upload = asyncio.ensure_future(world.store().write_parts("large", source))
        await begun.wait()
        assert await world.uploads() == 1
        upload.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert await world.uploads() == 0

    tell(story)


def test_encryption_on_the_server_is_asked_for_with_each_object(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        options = {**world.server.options, "server_side_encryption": "AES256"}
        await world.store(options=options).write("a/b", b"secret")
        [seen] = [seen for seen in world.wire.seen if seen.method == "PUT"]
        assert seen.headers["x-amz-server-side-encryption"] == "AES256"

    tell(story)


def test_neighbouring_ranges_are_one_request(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        store = world.store()
        await store.write("a/b", CONTENT)
        begin = len(world.wire.seen)
        found = await store.read("a/b", [ObjectRange(at, 10) for at in (200_000, 0, 5, 100_000)])
        assert [bytes(piece) for piece in found] == [CONTENT[at : at + 10] for at in (200_000, 0, 5, 100_000)]
        assert len(world.wire.seen) == begin + 1

    tell(story)
