"""Google's store over a wire that fails, its stand-in at the other end: what callers are told, and what lies there
afterwards. A guarded store does the same with all (`test_s3_faults.py`); here it is seen that the errors of this one
are taken for what they are."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.object_stores.faulty_wire import Answer, Fault, Wire, faulty_wire
from tests.storage.object_stores.faulty_world import CONTENT, PART_BYTES, SILENCE_SECONDS, WHOLE, World
from tests.storage.object_stores.gcs_stand_in import gcs_server
from tests.storage.object_stores.servers import Server

from mainstem.model import Buffer
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectExists,
    ObjectStoreOutage,
    ObjectStoreRefused,
    ObjectStoreThrottled,
    ObjectStoreTimedOut,
    ObjectStoreUnavailable,
)

pytest.importorskip("obstore")

NUMBERS = itertools.count()

Story = Callable[[World], Coroutine[None, None, None]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with gcs_server("mainstem-faults") as server:
        yield Server(server.endpoint, {"bearer_token": "test"}, server.bucket)


@pytest.fixture
def tell(server: Server) -> Callable[[Story], None]:
    async def told(story: Story) -> None:
        async with faulty_wire(server.address) as wire, asyncio.timeout(PATIENCE_SECONDS):
            await story(World(server, wire, f"store{next(NUMBERS)}", "gs"))

    return lambda story: asyncio.run(told(story))


def waiting_for(fault: Fault) -> float:
    return SILENCE_SECONDS if fault is Wire.SILENT else 30.0


@pytest.mark.parametrize(
    "fault",
    [Answer(500), Answer(503), Answer(429), Wire.ANSWER_LOST, Wire.REQUEST_CUT, Wire.SILENT],
    ids=str,
)
def test_an_object_is_written_once_and_whole_through_faults(fault: Fault, tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        world.wire.fails(fault, fault, method="PUT")
        store = world.store(request_timeout_seconds=waiting_for(fault))
        info = await store.write("a/b", CONTENT)
        assert info == await store.info("a/b")
        assert bytes((await store.read("a/b", WHOLE))[0]) == CONTENT
        assert sum(seen.method == "PUT" for seen in world.wire.seen) >= 3
        with pytest.raises(ObjectExists):  # the same bytes could be those of an attempt whose answer was lost
            await store.write("a/b", CONTENT[:-1])

    tell(story)


@pytest.mark.parametrize("fault", [Answer(500), Answer(503), Wire.ANSWER_CUT, Wire.SILENT], ids=str)
def test_an_object_is_read_whole_through_faults(fault: Fault, tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        store = world.store(request_timeout_seconds=waiting_for(fault))
        await store.write("a/b", CONTENT)
        world.wire.fails(fault, fault, method="GET")
        assert bytes((await store.read("a/b", WHOLE))[0]) == CONTENT
        assert store.retrying.retries >= 2

    tell(story)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Answer(500), ObjectStoreUnavailable),
        (Answer(503), ObjectStoreThrottled),
        (Answer(429), ObjectStoreThrottled),
        (Answer(401), ObjectStoreRefused),
        (Answer(403, "AccessDenied"), ObjectStoreRefused),
        (Wire.ANSWER_LOST, ObjectStoreUnavailable),
        (Wire.ANSWER_CUT, ObjectStoreUnavailable),
        (Wire.SILENT, ObjectStoreTimedOut),
    ],
    ids=str,
)
def test_each_fault_has_its_error(fault: Fault, error: type[Exception], tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        await world.plain().write("a/b", CONTENT)
        store = world.plain(request_timeout_seconds=waiting_for(fault))
        world.wire.always(fault)
        for asked in (1, 2):
            before = len(world.wire.seen)
            with pytest.raises(error):
                await store.read("a/b", WHOLE)
            assert len(world.wire.seen) == before + 1, f"question {asked} is sent once"

    tell(story)


def test_what_no_retry_helps_against_is_asked_once(tell: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        world.wire.always(Answer(403, "AccessDenied"))
        store = world.store()
        with pytest.raises(ObjectStoreRefused, match="AccessDenied"):
            await store.write("a/b", CONTENT)
        with pytest.raises(ObjectStoreRefused, match="AccessDenied"):
            await store.read("a/b", WHOLE)
        assert len(world.wire.seen) == 2

    tell(story)


def test_an_upload_in_parts_goes_on_through_faults_and_leaves_nothing_when_it_cannot(
    tell: Callable[[Story], None],
) -> None:
    async def parts() -> AsyncIterator[Buffer]:
        for place in range(3):
            yield bytes([place]) * PART_BYTES

    async def story(world: World) -> None:
        store = world.store(retry_seconds=1.0)
        world.wire.fails(Answer(503), method="PUT", target="partNumber=2")
        assert (await store.write_parts("whole", parts)).size_bytes == 3 * PART_BYTES
        sent = [seen.target for seen in world.wire.seen if "partNumber" in seen.target]
        assert len(sent) == 4, "the part that failed, alone"
        world.wire.always(Answer(500), method="PUT", target="partNumber=2")
        with pytest.raises(ObjectStoreOutage):
            await store.write_parts("half", parts)
        world.wire.fails()
        with pytest.raises(ObjectAbsent):
            await world.plain().info("half")

    tell(story)
