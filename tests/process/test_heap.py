"""The garbage collector: off while a node starts, and kept away from what was there then, from topics, and from what
outlives the middle generation."""

from __future__ import annotations

import asyncio
import gc
import uuid
import weakref
from collections.abc import Iterator

import pytest

from mainstem.model import Topic
from mainstem.nameserver.state.commands import TopicCreated, TopicDeleted
from mainstem.process.heap import (
    FREEZE_EVERY_TOPICS,
    GROWN_SHARE,
    MIDDLE_OBJECTS,
    QUIET_BYTES_MAX,
    QUIET_THAW_AFTER_MIDDLE,
    THAW_AFTER_MIDDLE,
    YOUNG_OBJECTS,
    Heap,
)

TOPIC = Topic(name="t", number=1, topic_id=uuid.UUID(int=1), partitions=1)


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    gc.enable()


def test_nothing_is_collected_while_a_node_starts() -> None:
    heap = Heap()
    heap.start()
    assert not gc.isenabled()
    heap.started()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_topics_are_frozen_when_many_were_created() -> None:
    heap = Heap()
    heap.topic_changed(TopicDeleted(TOPIC))
    for _ in range(FREEZE_EVERY_TOPICS - 1):
        heap.topic_changed(TopicCreated(TOPIC))
    assert gc.get_freeze_count() == 0
    heap.topic_changed(TopicCreated(TOPIC))
    assert gc.get_freeze_count() > 0


SPARE = 200
"""Lists that the interpreter keeps and uses again, and more."""


class Knot:
    """Holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.knot = self


def old_knot() -> weakref.ref[Knot]:
    """One that has outlived the younger generations, and is garbage now."""
    knot = Knot()
    gc.collect(1)
    return weakref.ref(knot)


def middle_collections(count: int) -> None:
    """Have objects come about until so many collections of the middle generation were due."""
    for _ in range(count * MIDDLE_OBJECTS // YOUNG_OBJECTS):
        alive: list[list[int]] = [[] for _ in range(YOUNG_OBJECTS + SPARE)]
        del alive


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.fixture
def heap() -> Iterator[Heap]:
    """Of a node that runs."""
    heap = Heap()
    heap.started()
    gc.callbacks.append(heap.collected)
    yield heap
    gc.callbacks.remove(heap.collected)


def test_the_collector_is_listened_to_as_long_as_a_node_runs() -> None:
    async def scenario() -> None:
        heap = Heap()
        before = list(gc.callbacks)
        keeping = asyncio.ensure_future(heap.keep(lambda: 0))
        await asyncio.sleep(0)
        assert gc.callbacks == [*before, heap.collected]
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert gc.callbacks == before

    asyncio.run(scenario())


def test_what_outlives_the_middle_generation_is_visited_no_more(heap: Heap) -> None:
    living: list[list[int]] = [[] for _ in range(2 * MIDDLE_OBJECTS)]
    gc.collect(1)
    frozen = gc.get_freeze_count()
    assert len(gc.get_objects()) < MIDDLE_OBJECTS
    del living
    assert gc.get_freeze_count() < frozen - MIDDLE_OBJECTS, "what is frozen is freed with its last reference"


def test_a_young_collection_freezes_nothing(heap: Heap) -> None:
    frozen = gc.get_freeze_count()
    living: list[list[int]] = [[] for _ in range(1_000)]
    gc.collect(0)
    assert gc.get_freeze_count() <= frozen
    del living


def test_a_quiet_moment_thaws_what_is_frozen_when_that_is_due(heap: Heap) -> None:
    knot = old_knot()
    heap.look(0)
    gc.collect()
    assert knot() is not None, "not due yet"
    middle_collections(QUIET_THAW_AFTER_MIDDLE + 1)
    heap.look(QUIET_BYTES_MAX + 1)
    assert knot() is not None, "a moment in which requests hold much"
    heap.look(QUIET_BYTES_MAX)
    assert knot() is None
    assert gc.get_freeze_count() > len(gc.get_objects()), "what lives is frozen again"
    full = full_collections()
    heap.look(0)
    heap.look(0)
    assert full_collections() == full, "nothing has come about since"


def test_a_thaw_waits_until_what_lives_has_grown(heap: Heap, monkeypatch: pytest.MonkeyPatch) -> None:
    living = 6_000_000
    middle_collections(QUIET_THAW_AFTER_MIDDLE + 1)
    heap.look(0)
    full = full_collections()
    with monkeypatch.context() as counting:
        counting.setattr(gc, "get_freeze_count", lambda: living)
        heap.look(0)
    middle_collections(QUIET_THAW_AFTER_MIDDLE + 1)
    heap.look(0)
    assert full_collections() == full, "of six million, one may be new"
    middle_collections(living // GROWN_SHARE // MIDDLE_OBJECTS - QUIET_THAW_AFTER_MIDDLE)
    heap.look(0)
    assert full_collections() == full + 1


def test_what_lives_is_counted_after_a_thaw_in_a_quiet_moment(heap: Heap, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = gc.get_freeze_count

    def counting() -> int:
        counted.append(count())
        return counted[-1]

    monkeypatch.setattr(gc, "get_freeze_count", counting)
    middle_collections(QUIET_THAW_AFTER_MIDDLE + 1)
    full = full_collections()
    heap.look(0)
    assert (full_collections(), counted) == (full + 1, []), "one after the other, not both in one turn"
    heap.look(QUIET_BYTES_MAX + 1)
    assert not counted, "requests hold much"
    heap.look(0)
    assert (full_collections(), len(counted)) == (full + 1, 1)


def test_garbage_is_collected_without_a_quiet_moment(heap: Heap) -> None:
    knot = old_knot()
    for _ in range(THAW_AFTER_MIDDLE + 2):
        middle_collections(1)
        heap.look(QUIET_BYTES_MAX + 1)
    assert knot() is None
