"""Three nameservers and more: one cluster is made, changes reach every node, and who leads may change."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import NewTopic, Topic
from mainstem.nameserver.errors import (
    InvalidTopicName,
    MetadataUnavailable,
    TopicExists,
    UnknownTopic,
)
from mainstem.nameserver.state.commands import Event, TopicCreated


def test_three_nodes_make_one_cluster_and_place_its_groups() -> None:
    async def scenario() -> None:
        cluster = Nameservers(1, write_groups=6)
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        assert len({it.lookups.cluster_id() for it in cluster.running.values()}) == 1
        for nameserver in cluster.running.values():
            assert {node.node_id for node in nameserver.lookups.nodes()} == {1, 2, 3}
            assert all(sorted(replicas) == [1, 2, 3] for replicas in nameserver.lookups.placements().values())
            led = Counter(nameserver.lookups.preferred_leader(group) for group in range(6))
            assert led == {1: 2, 2: 2, 3: 2}
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_a_change_made_anywhere_is_there_when_the_call_returns_and_soon_everywhere() -> None:
    async def scenario() -> None:
        cluster = Nameservers(2)
        await cluster.start_all()
        heard: dict[int, list[Event]] = {node_id: [] for node_id in cluster.running}
        for node_id, nameserver in cluster.running.items():
            nameserver.subscribe(heard[node_id].append)
        for node_id, nameserver in cluster.running.items():
            topic = await nameserver.administration.create_topic(f"t{node_id}", 3, 2, {"retention.ms": "7"})
            assert nameserver.lookups.topic(f"t{node_id}") is topic
            assert heard[node_id][-1] == TopicCreated(topic)
            with pytest.raises(TopicExists):
                await nameserver.administration.create_topic(f"t{node_id}", 1, 1, {})
            grown = await nameserver.administration.create_partitions(f"t{node_id}", 5)
            assert grown.partitions == 5
            changed = await nameserver.administration.alter_configs(f"t{node_id}", {"retention.ms": None})
            assert changed.configs == {}
            with pytest.raises(UnknownTopic):
                await nameserver.administration.create_partitions("nobody", 5)
        mixed = await cluster.running[3].administration.create_topics(
            [NewTopic(name, 1, 1, {}) for name in ("a", "t1", "b", "t_1", "t.1")]
        )
        assert [type(it) for it in mixed] == [Topic, TopicExists, Topic, Topic, InvalidTopicName]
        assert [
            it.name for it in await cluster.running[2].administration.delete_topics(["t1"]) if isinstance(it, Topic)
        ]
        ids = [await nameserver.administration.allocate_producer_id() for nameserver in cluster.running.values()]
        assert len(set(ids)) == 3
        await cluster.settled()
        topic_events = [[it for it in events if hasattr(it, "topic")] for events in heard.values()]
        assert topic_events[0] == topic_events[1] == topic_events[2] != []
        await cluster.close()

    simulate(scenario())


def test_a_lost_answer_does_not_make_a_change_twice() -> None:
    async def scenario() -> None:
        cluster = Nameservers(3)
        await cluster.start_all()
        leader = await cluster.elected()
        other = next(node_id for node_id in cluster.running if node_id != leader)
        for number in range(5):
            cluster.network.lose_answers_of.add("metadata.change")
            made = await cluster.running[other].administration.create_topic(f"t{number}", 1, 1, {})
            assert made.number == number + 1
            assert not cluster.network.lose_answers_of
        cluster.network.lose_answers_of.add("metadata.change")
        (gone,) = await cluster.running[other].administration.delete_topics(["t0"])
        assert isinstance(gone, Topic)
        assert gone.name == "t0"
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_a_minority_refuses_and_a_majority_goes_on() -> None:
    async def scenario() -> None:
        cluster = Nameservers(4, change_wait_ms_max=3_000)
        await cluster.start_all()
        leader = await cluster.elected()
        others = set(cluster.running) - {leader}
        cluster.network.split({leader}, others)
        with pytest.raises(MetadataUnavailable, match="try again"):
            await cluster.running[leader].administration.create_topic("minority", 1, 1, {})
        with pytest.raises(MetadataUnavailable):
            await cluster.running[leader].waits.current()
        some = cluster.running[min(others)]
        await some.administration.create_topic("majority", 1, 1, {})
        await some.waits.current()
        cluster.network.heal()
        await cluster.settled()
        # a caller that was told 'unavailable' knows nothing: the change may come or not, but is the same everywhere
        assert cluster.running[leader].lookups.topic("majority") is not None
        await cluster.running[leader].administration.create_topic("healed", 1, 1, {})
        await cluster.close()

    simulate(scenario())


def test_a_read_sees_what_was_answered_elsewhere_before() -> None:
    async def scenario() -> None:
        cluster = Nameservers(5)
        cluster.network.delay_seconds = (0.01, 0.1)
        await cluster.start_all()
        for number in range(10):
            writer, reader = cluster.network.rng.sample(sorted(cluster.running), 2)
            await cluster.running[writer].administration.create_topic(f"t{number}", 1, 1, {})
            await cluster.running[reader].waits.current()
            assert cluster.running[reader].lookups.topic(f"t{number}") is not None
        await cluster.close()

    simulate(scenario())


def test_the_leader_dies_in_the_middle_of_changes() -> None:
    async def scenario() -> None:
        cluster = Nameservers(6)
        await cluster.start_all()
        for turn in range(4):
            leader = await cluster.elected()
            survivor = next(node_id for node_id in cluster.running if node_id != leader)
            changes = [
                asyncio.ensure_future(cluster.running[survivor].administration.create_topic(f"t{turn}-{n}", 1, 1, {}))
                for n in range(20)
            ]
            await asyncio.sleep(0.02)
            await cluster.kill(leader)
            topics = await asyncio.gather(*changes)
            assert len({topic.number for topic in topics}) == 20
            await cluster.start(leader)
        await cluster.settled()
        assert len(list(cluster.running[1].lookups.topics())) == 80
        await cluster.close()

    simulate(scenario())


def test_all_nodes_lose_power_and_come_back() -> None:
    async def scenario() -> None:
        cluster = Nameservers(7)
        await cluster.start_all()
        created = []
        for turn in range(3):
            for number in range(30):
                created.append(
                    await cluster.running[1 + number % 3].administration.create_topic(f"t{turn}-{number}", 1, 1, {})
                )
            for node_id in list(cluster.running):
                await cluster.kill(node_id)
            await cluster.start_all()
            await cluster.settled()
            assert [(it.name, it.number, it.topic_id) for it in cluster.running[2].lookups.topics()] == [
                (it.name, it.number, it.topic_id) for it in created
            ]
        await cluster.close()

    simulate(scenario())


def test_a_node_that_was_away_for_long_gets_a_snapshot() -> None:
    async def scenario() -> None:
        cluster = Nameservers(8)
        await cluster.start_all()
        leader = await cluster.elected()
        away = next(node_id for node_id in cluster.running if node_id != leader)
        topics = [NewTopic(f"early{number}", 1, 1, {}) for number in range(50)]
        await cluster.running[leader].administration.create_topics(topics)
        await cluster.kill(away)
        await cluster.running[leader].administration.delete_topics([f"early{number}" for number in range(25)])
        for number in range(250):
            await cluster.running[leader].administration.create_topic(f"late{number}", 1, 1, {"retention.ms": "123"})
        others = list(cluster.running)
        for node_id in others:
            await cluster.stop(node_id)  # what they keep in memory for those who are late is gone
        await asyncio.gather(*map(cluster.start, others))
        heard: list[Event] = []
        nameserver = await cluster.start(away)
        nameserver.subscribe(heard.append)
        await cluster.settled()
        assert any(method == "metadata.fetch_snapshot" for _, _, method in cluster.network.calls_made)
        assert nameserver.lookups.topic("late249") is not None
        assert nameserver.lookups.topic("early0") is None
        await cluster.kill(away)
        await cluster.start(away)
        await cluster.settled()
        await cluster.close()

    simulate(scenario())
