"""A queue of a lost cluster begins at 0 where what is missing before may have been given up or compacted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.storage.remote.stored_cluster import CLUSTER, IDLE, ORDERS, StoredCluster, batches_of, told

from mainstem.model import Topic, queue_id_of
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.adopting.lost_cluster import read_lost_cluster

FIRST, SECOND, OTHER = queue_id_of(3, 0), queue_id_of(3, 1), queue_id_of(5, 0)


async def filled(there: StoredCluster) -> None:
    """Each file has ten blocks, the first of them (0, 10]; what was before the queues' offsets is deleted by age."""
    first = [*batches_of(3, 0, range(90, 99, 3)), *batches_of(3, 1, [60, 63])]
    await there.upload("first.pack", first)
    await there.upload("second.pack", [*batches_of(3, 0, range(99, 120, 3)), *batches_of(5, 0, [30])])
    await there.upload("third.pack", [*batches_of(3, 0, range(120, 150, 3)), *batches_of(3, 1, [66])])


async def give_up(there: StoredCluster, name: str, after: int, queues: tuple[int, int]) -> None:
    noted = GivenUpFile(name, after, after + 10, 9, 900, *queues, 7, "somebody", "is missing")
    assert await there.node.storage.remote.record(0, given_up=[noted]) == "recorded"


async def begins(there: StoredCluster) -> dict[int, int]:
    await there.tell()
    found = await read_lost_cluster(there.store, CLUSTER)
    return {queue_id: first for queue_id, first, _end in found.queues.tolist()}


def test_queues_begin_at_what_is_left_where_nothing_was_given_up(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        await filled(there)
        assert await begins(there) == {FIRST: 90, SECOND: 60, OTHER: 30}

    told(tmp_path, story)


@pytest.mark.parametrize(
    ("name", "after", "queues", "expected"),
    [
        ("first.pack", 0, (FIRST, SECOND), {FIRST: 0, SECOND: 0, OTHER: 30}),
        ("first.pack", 0, (0, 2**63 - 1), {FIRST: 0, SECOND: 0, OTHER: 0}),  # a run does not say which it had
        ("second.pack", 10, (FIRST, OTHER), {FIRST: 90, SECOND: 60}),  # there is an earlier file
        ("third.pack", 20, (FIRST, SECOND), {FIRST: 90, SECOND: 60, OTHER: 30}),
    ],
)
def test_queues_begin_at_0_where_a_file_before_all_that_is_left_was_given_up(
    tmp_path: Path, name: str, after: int, queues: tuple[int, int], expected: dict[int, int]
) -> None:
    async def story(there: StoredCluster) -> None:
        await filled(there)
        await give_up(there, name, after, queues)
        assert await begins(there) == expected

    told(tmp_path, story)


def configured(topic: Topic, internal: bool, **configs: str) -> Topic:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    return dataclasses.replace(topic, configs=settings, internal=internal)


@pytest.mark.parametrize(
    ("policy", "internal", "first"),
    [("compact", False, 0), ("compact,delete", False, 90), ("delete", False, 90), ("compact", True, 90)],
)
def test_queues_of_compacted_topics_begin_at_0(tmp_path: Path, policy: str, internal: bool, first: int) -> None:
    """The machines that write internal topics drop what is before their snapshots."""

    async def story(there: StoredCluster) -> None:
        there.topics = (configured(ORDERS, internal, cleanup_policy=policy), IDLE)
        await filled(there)
        assert await begins(there) == {FIRST: first, SECOND: 60 if first else 0, OTHER: 30}

    told(tmp_path, story)


def test_queues_of_internal_topics_begin_at_what_is_left_also_where_a_file_was_given_up(tmp_path: Path) -> None:
    async def story(there: StoredCluster) -> None:
        there.topics = (configured(ORDERS, True, cleanup_policy="delete"), IDLE)
        await filled(there)
        await give_up(there, "first.pack", 0, (FIRST, OTHER))
        assert await begins(there) == {FIRST: 99, SECOND: 66, OTHER: 0}

    told(tmp_path, story)
