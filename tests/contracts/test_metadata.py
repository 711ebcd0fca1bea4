"""`ports.Metadata`, `ports.Cluster` and `ports.MetadataAdmin`: the fake refuses, answers and remembers as a nameserver
does that is alone in its cluster."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.fakes.metadata import FakeMetadata
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.errors import MainstemError
from mainstem.model import NewTopic, Node, Topic
from mainstem.nameserver.administration.metadata_administration import MetadataAdministration
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopicName,
    TopicExists,
    UnknownTopic,
)
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.topic_table import PARTITIONS_PER_TOPIC_MAX, PARTITIONS_TOTAL_MAX
from mainstem.storage.disks.disk_files import DiskFiles

NODE = Node(node_id=1, host="127.0.0.1", port=9092)


class Subject(NamedTuple):
    """The implementations of the ports."""

    lookups: FakeMetadata | MetadataLookups
    administration: FakeMetadata | MetadataAdministration


Tell = Callable[[Callable[[Subject], Awaitable[None]]], None]


@pytest.fixture(params=["fake", "nameserver"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Tell:
    async def told(story: Callable[[Subject], Awaitable[None]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            if request.param == "fake":
                fake = FakeMetadata([NODE])
                await story(Subject(fake, fake))
                return
            disk = DiskFiles(tmp_path)
            nameserver = await Nameserver.open(disk, random.Random(1), NameserverConfig(), NODE)
            try:
                await story(Subject(nameserver.lookups, nameserver.administration))
            finally:
                await nameserver.close()
                await disk.close()

    return lambda story: asyncio.run(told(story))


def kinds(outcomes: list[Topic | MainstemError]) -> list[str | type[MainstemError]]:
    return [it.name if isinstance(it, Topic) else type(it) for it in outcomes]


def new(name: str, partitions: int = 1, copies: int = 1, **configs: str) -> NewTopic:
    return NewTopic(name, partitions, copies, {key.replace("_", "."): value for key, value in configs.items()})


class TestTopics:
    def test_what_is_created_is_found_by_name_and_id(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            made = await subject.administration.create_topic("a", 3, 1, {"retention.ms": "60000"})
            assert (made.name, made.partitions, made.replication_factor, made.internal) == ("a", 3, 1, False)
            assert made.configs == {"retention.ms": "60000"}
            assert made.settings.retention_ms == 60_000
            inside = await subject.administration.create_topic("inside", 1, 1, {}, internal=True)
            assert inside.internal
            assert subject.lookups.topic("a") == subject.lookups.topic_by_id(made.topic_id) == made
            assert subject.lookups.topic("b") is None
            assert subject.lookups.topic_by_id(uuid.uuid4()) is None
            assert list(subject.lookups.topics()) == [made, inside]
            assert made.number != inside.number
            assert made.topic_id != inside.topic_id

        tell(story)

    def test_nobody_gets_the_number_or_the_id_of_one_that_is_gone(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            first = await subject.administration.create_topic("a", 1, 1, {})
            assert await subject.administration.delete_topics(["a"]) == [first]
            assert list(subject.lookups.topics()) == []
            again = await subject.administration.create_topic("a", 1, 1, {})
            assert again.number > first.number
            assert again.topic_id != first.topic_id
            assert subject.lookups.topic_by_id(first.topic_id) is None

        tell(story)

    @pytest.mark.parametrize(
        ("wanted", "refusal"),
        [
            (new(""), InvalidTopicName),
            (new("."), InvalidTopicName),
            (new("a b"), InvalidTopicName),
            (new("x" * 250), InvalidTopicName),
            (new("a.b"), TopicExists),
            (new("a_b"), InvalidTopicName),
            (new("t", 0), InvalidPartitions),
            (new("t", -1), InvalidPartitions),
            (new("t", PARTITIONS_PER_TOPIC_MAX + 1), InvalidPartitions),
            (new("t", 1, 0), InvalidReplicationFactor),
            (new("t", 1, -2), InvalidReplicationFactor),
            (new("t", 1, 2), InvalidReplicationFactor),
            (new("t", retention_ms="soon"), InvalidConfig),
            (new("t", no_such_config="1"), InvalidConfig),
            (new("", 0, 0), InvalidTopicName),
            (new("a.b", 0, 0), TopicExists),
            (new("t", 0, 0), InvalidPartitions),
            (new("t", 1, 0, retention_ms="soon"), InvalidReplicationFactor),
        ],
        ids=str,
    )
    def test_what_cannot_be_created_is_refused(
        self, tell: Tell, wanted: NewTopic, refusal: type[MainstemError]
    ) -> None:
        async def story(subject: Subject) -> None:
            there = await subject.administration.create_topic("a.b", 1, 1, {})
            for validate_only in (True, False):
                with pytest.raises(refusal):
                    await subject.administration.create_topic(*wanted, validate_only=validate_only)
                assert kinds(await subject.administration.create_topics([wanted], validate_only=validate_only)) == [
                    refusal
                ]
            assert list(subject.lookups.topics()) == [there]

        tell(story)

    def test_of_many_each_has_its_answer(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            wanted = [new("a"), new("b", 0), new("a"), new("x.y"), new("x_y"), new("c", 2)]
            expected: list[str | type[MainstemError]] = [
                "a", InvalidPartitions, TopicExists, "x.y", InvalidTopicName, "c"]  # fmt: skip
            assert kinds(await subject.administration.create_topics(wanted, validate_only=True)) == expected
            assert list(subject.lookups.topics()) == []
            assert kinds(await subject.administration.create_topics(wanted)) == expected
            assert [topic.name for topic in subject.lookups.topics()] == ["a", "x.y", "c"]
            assert kinds(await subject.administration.delete_topics(["c", "none", "a", "c"])) == [
                "c", UnknownTopic, "a", UnknownTopic]  # fmt: skip
            assert [topic.name for topic in subject.lookups.topics()] == ["x.y"]
            assert await subject.administration.create_topics([]) == []
            assert await subject.administration.delete_topics([]) == []

        tell(story)

    def test_the_cluster_has_only_so_many_partitions(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            largest = PARTITIONS_PER_TOPIC_MAX
            for number in range(PARTITIONS_TOTAL_MAX // largest - 1):
                await subject.administration.create_topic(f"t{number}", largest, 1, {})
            await subject.administration.create_topic("some", 1, 1, {})
            with pytest.raises(InvalidPartitions):
                await subject.administration.create_topic("more", largest, 1, {})
            with pytest.raises(InvalidPartitions):
                await subject.administration.create_partitions("some", largest + 1)
            grown = await subject.administration.create_partitions("some", largest)
            assert grown.partitions == largest
            with pytest.raises(InvalidPartitions):
                await subject.administration.create_topic("more", 1, 1, {})
            await subject.administration.create_topic("inside", 1, 1, {}, internal=True)

        tell(story)

    def test_partitions_grow_and_never_shrink(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            made = await subject.administration.create_topic("a", 3, 1, {})
            assert (await subject.administration.create_partitions("a", 9, validate_only=True)).partitions == 9
            assert subject.lookups.topic("a") == made
            grown = await subject.administration.create_partitions("a", 4)
            assert (grown.partitions, grown.topic_id, grown.number) == (4, made.topic_id, made.number)
            assert subject.lookups.topic("a") == subject.lookups.topic_by_id(made.topic_id) == grown
            assert made.partitions == 3, "what was told stays as it was"
            for total in (4, 3, 0, -1, PARTITIONS_PER_TOPIC_MAX + 1):
                for validate_only in (True, False):
                    with pytest.raises(InvalidPartitions):
                        await subject.administration.create_partitions("a", total, validate_only=validate_only)
            with pytest.raises(UnknownTopic):
                await subject.administration.create_partitions("b", 4)
            assert subject.lookups.topic("a") == grown

        tell(story)

    def test_configs_are_set_and_removed(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            made = await subject.administration.create_topic(
                "a", 1, 1, {"retention.ms": "1000", "cleanup.policy": "delete"}
            )
            tried = await subject.administration.alter_configs("a", {"retention.ms": "7"}, validate_only=True)
            assert (tried.settings.retention_ms, subject.lookups.topic("a")) == (7, made)
            changed = await subject.administration.alter_configs(
                "a", {"retention.ms": None, "max.message.bytes": "5000"}
            )
            assert changed.configs == {"cleanup.policy": "delete", "max.message.bytes": "5000"}
            assert (changed.settings.max_message_bytes, changed.settings.retention_ms) == (
                5000, (await subject.administration.create_topic("plain", 1, 1, {})).settings.retention_ms)  # fmt: skip
            assert subject.lookups.topic("a") == changed
            assert made.configs == {"retention.ms": "1000", "cleanup.policy": "delete"}
            for wrong in ({"retention.ms": "soon"}, {"no.such": "1"}, {"cleanup.policy": "shred"}):
                for validate_only in (True, False):
                    with pytest.raises(InvalidConfig):
                        await subject.administration.alter_configs("a", wrong, validate_only=validate_only)
            assert (await subject.administration.alter_configs("a", {"segment.bytes": None})).configs == changed.configs
            with pytest.raises(UnknownTopic):
                await subject.administration.alter_configs("b", {})

        tell(story)

    def test_nobody_writes_into_what_was_asked_for(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            configs = {"retention.ms": "1000"}
            made = await subject.administration.create_topic("a", 1, 1, configs)
            configs["retention.ms"] = "7"
            assert subject.lookups.topic("a") == made
            assert made.configs == {"retention.ms": "1000"}

        tell(story)


class TestCluster:
    def test_a_node_alone_leads_and_lives(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            assert list(subject.lookups.nodes()) == list(subject.lookups.alive_nodes()) == [NODE]
            assert (subject.lookups.metadata_leader, subject.lookups.out_of_touch) == (1, False)
            assert subject.lookups.cluster_id()

        tell(story)

    def test_producer_ids_are_given_once(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            given = [await subject.administration.allocate_producer_id() for _ in range(20)]
            given += await asyncio.gather(*(subject.administration.allocate_producer_id() for _ in range(20)))
            assert len(set(given)) == 40
            assert min(given) >= 0

        tell(story)
