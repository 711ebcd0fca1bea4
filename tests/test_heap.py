"""The garbage collector: off while a node starts, and kept away from what was there then and from topics."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator

import pytest

from mainstem.heap import FREEZE_EVERY_TOPICS, Heap
from mainstem.model import Topic
from mainstem.nameserver.state.commands import TopicCreated, TopicDeleted

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
