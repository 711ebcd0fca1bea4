"""Metadata that were made of what is known of a lost cluster: the same topics under the same numbers, and nothing that
was given out is given again."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest
from tests.fakes.files import SimulatedFiles

from mainstem.model import SLOTS, FeatureLevel, Node
from mainstem.nameserver.adopted_metadata import ENTRIES_BEHIND, PRODUCER_IDS_BEHIND, KnownCluster, write_metadata
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import ForeignDirectory
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import CreateTopic

NODE = Node(node_id=7, host="127.0.0.1", port=9092)


def created(number: int, name: str, partitions: int = 3, *, internal: bool = False) -> CreateTopic:
    return CreateTopic(name, number, uuid.UUID(int=number), partitions, 1, {"retention.ms": "5000"}, internal)


TOPICS = (created(2, "orders"), created(5, "__consumer_offsets", 16, internal=True))
KNOWN = KnownCluster("c1-_x", 4, TOPICS, 8, 40, 2)


async def opened(disk: SimulatedFiles, seed: int) -> Nameserver:
    return await Nameserver.open(disk, random.Random(seed), NameserverConfig(node_id=7), NODE)


async def begun(disk: SimulatedFiles) -> Nameserver:
    await write_metadata(disk, 7, [7], bytes(range(16)), KNOWN)
    return await opened(disk, 1)


def test_topics_are_as_they_were_and_numbers_go_on() -> None:
    async def story() -> None:
        disk = SimulatedFiles()
        nameserver = await begun(disk)
        lookups = nameserver.lookups
        assert lookups.cluster_id() == "c1-_x"
        assert lookups.write_groups() == 4
        assert lookups.feature_level == FeatureLevel.newest()
        assert [(it.number, it.name, it.partitions, it.topic_id.int) for it in lookups.topics()] == [
            (2, "orders", 3, 2), (5, "__consumer_offsets", 16, 5),
        ]  # fmt: skip
        assert all(it.settings.retention_ms == 5000 for it in lookups.topics())
        assert [number for number in range(1, 10) if lookups.was_deleted(number)] == [1, 3, 4, 6, 7]
        as_of = await lookups.topics_as_of()
        assert as_of.version > 40 + ENTRIES_BEHIND
        assert as_of.next_number == 8
        assert (await nameserver.administration.create_topic("new", 1, 1, {})).number == 8
        assert await nameserver.administration.allocate_producer_id() == 2 * PRODUCER_IDS_BEHIND
        await nameserver.close()
        again = await opened(disk, 2)
        assert [it.name for it in again.lookups.topics()] == ["orders", "__consumer_offsets", "new"]
        await again.close()

    asyncio.run(story())


def test_slots_are_as_they_were_where_write_groups_had_been_added() -> None:
    slots = (*[3] * 100, *[slot % 3 for slot in range(SLOTS - 100)])

    async def story() -> None:
        disk = SimulatedFiles()
        await write_metadata(disk, 7, [7], bytes(range(16)), KNOWN._replace(slots=slots))
        nameserver = await opened(disk, 1)
        assert tuple(nameserver.lookups.slots()) == slots == (await nameserver.lookups.topics_as_of()).slots
        await nameserver.operations.add_write_groups(6)
        assert len((await nameserver.lookups.topics_as_of()).slots) == SLOTS
        assert nameserver.lookups.founders() == {4: (7,), 5: (7,)}
        await nameserver.close()

    asyncio.run(story())


def test_the_directory_is_the_nodes_own() -> None:
    async def story() -> None:
        disk = SimulatedFiles()
        await write_metadata(disk, 8, [8], bytes(16), KNOWN)
        with pytest.raises(ForeignDirectory, match="belongs to node 8"):
            await opened(disk, 1)

    asyncio.run(story())
