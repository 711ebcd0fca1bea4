"""The garbage collector: off while a node starts, and kept away from what was there then and from topics."""

from __future__ import annotations

import gc
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from mainstem.model import Topic
from mainstem.nameserver.state.commands import TopicCreated, TopicDeleted
from mainstem.process.heap import (
    FREEZE_EVERY_TOPICS,
    FULL_AFTER_MIDDLE,
    GROWN_SHARE,
    MIDDLE_OBJECTS,
    QUIET_BYTES_MAX,
    QUIET_FULL_AFTER_MIDDLE,
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


def test_a_quiet_moment_has_the_full_collection_that_is_due() -> None:
    heap = Heap()
    heap.started()
    knot = old_knot()
    heap.look(0)
    assert knot() is not None, "not due yet"
    middle_collections(QUIET_FULL_AFTER_MIDDLE + 1)
    heap.look(QUIET_BYTES_MAX + 1)
    assert knot() is not None, "a moment in which requests hold much"
    heap.look(QUIET_BYTES_MAX)
    assert knot() is None
    full = full_collections()
    heap.look(0)
    assert full_collections() == full, "nothing has come about since"


def test_a_full_collection_waits_until_what_lives_has_grown() -> None:
    heap = Heap()
    heap.started()
    living: list[list[int]] = [[] for _ in range(2_000_000)]
    gc.collect(1)
    middle_collections(QUIET_FULL_AFTER_MIDDLE)
    heap.look(0)
    full = full_collections()
    heap.look(0)
    middle_collections(QUIET_FULL_AFTER_MIDDLE + 1)
    heap.look(0)
    assert full_collections() == full, "of two million, some hundred thousand may be new"
    middle_collections(len(living) // GROWN_SHARE // MIDDLE_OBJECTS)
    heap.look(0)
    assert full_collections() == full + 1


def test_what_lives_is_counted_after_the_full_collection_in_a_quiet_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = gc.get_objects

    def counting(generation: int) -> list[Any]:
        counted.append(generation)
        return count(generation)

    monkeypatch.setattr(gc, "get_objects", counting)
    heap = Heap()
    heap.started()
    middle_collections(QUIET_FULL_AFTER_MIDDLE + 1)
    full = full_collections()
    heap.look(0)
    assert (full_collections(), counted) == (full + 1, []), "one after the other, not both in one turn"
    heap.look(QUIET_BYTES_MAX + 1)
    assert not counted, "requests hold much"
    heap.look(0)
    assert (full_collections(), counted) == (full + 1, [2])


def test_garbage_is_collected_without_a_quiet_moment() -> None:
    heap = Heap()
    heap.started()
    knot = old_knot()
    for _ in range(FULL_AFTER_MIDDLE + 2):
        middle_collections(1)
        heap.look(QUIET_BYTES_MAX + 1)
    assert knot() is None
