"""Seeded histories of three nameservers under loss, delay, partitions and power cuts, against what was answered.

Names are never used twice, so an answer 'exists' to a creation means it was made twice. A change that was answered must
be there at the end, on every node; one that was answered 'unavailable' may be there or not; numbers and producer ids
are given once, and every node heard of the same changes in the same order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import NewTopic, Topic
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.state.commands import Event, TopicCreated, TopicDeleted

SECONDS = 20.0
SEEDS = range(6)


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Nameservers(seed, change_wait_ms_max=4_000, log_bytes_max=4096)
        self.names = 0
        self.created: dict[str, Topic] = {}
        self.deleted: set[str] = set()
        self.unknown: set[str] = set()
        self.producer_ids: list[int] = []
        self.numbers: dict[int, str] = {}
        self.unavailable = 0

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.start_all()
        end = asyncio.get_running_loop().time() + SECONDS
        clients = [asyncio.ensure_future(self.client(end)) for _ in range(4)]
        await self.trouble(end)
        cluster.network.heal()
        await asyncio.gather(*clients)
        for node_id in cluster.first_quorum:
            if node_id not in cluster.running:
                await cluster.start(node_id)
        await cluster.settled()
        self.check()
        await cluster.close()

    # what clients do

    async def client(self, end: float) -> None:
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self.rng.uniform(0, 0.2))
            if not self.cluster.running:
                continue
            node_id = self.rng.choice(sorted(self.cluster.running))
            try:
                await self.act(node_id)
            except MetadataUnavailable:
                self.unavailable += 1

    async def act(self, node_id: int) -> None:
        nameserver = self.cluster.running[node_id]
        match self.rng.randrange(6):
            case 0 | 1 | 2:
                name = self.new_name()
                self.unknown.add(name)
                topic = await nameserver.administration.create_topic(name, 1, 1, {})
                assert nameserver.lookups.topic(name) == topic, "the caller's own node has it"
                self.note(topic)
            case 3:
                names = [self.new_name() for _ in range(self.rng.randint(1, 20))]
                self.unknown.update(names)
                for made in await nameserver.administration.create_topics([NewTopic(name, 1, 1, {}) for name in names]):
                    assert isinstance(made, Topic), made
                    self.note(made)
            case 4:
                candidates = sorted(self.created.keys() - self.deleted - self.unknown)
                if candidates:
                    name = self.rng.choice(candidates)
                    self.unknown.add(name)
                    await nameserver.waits.current()
                    (gone,) = await nameserver.administration.delete_topics([name])
                    assert isinstance(gone, Topic), gone
                    self.deleted.add(name)
                    self.unknown.discard(name)
            case _:
                self.producer_ids.append(await nameserver.administration.allocate_producer_id())

    def new_name(self) -> str:
        self.names += 1
        return f"t{self.names}"

    def note(self, topic: Topic) -> None:
        assert self.numbers.setdefault(topic.number, topic.name) == topic.name
        self.created[topic.name] = topic
        self.unknown.discard(topic.name)

    # what happens to them

    async def trouble(self, end: float) -> None:
        network = self.cluster.network
        while (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left, self.rng.uniform(0.2, 3.0)))
            match self.rng.randrange(7):
                case 0:
                    network.loss = self.rng.choice([0.0, 0.05, 0.3])
                    network.repeats = self.rng.choice([0.0, 0.2])
                case 1:
                    network.delay_seconds = self.rng.choice([(0.0005, 0.01), (0.01, 0.2)])
                case 2:
                    alone = self.rng.choice(self.cluster.first_quorum)
                    network.split({alone}, set(self.cluster.first_quorum) - {alone})
                case 3 | 4:
                    await self.power_cut()
                case _:
                    network.heal()

    async def power_cut(self) -> None:
        cluster = self.cluster
        for node_id in self.rng.sample(cluster.first_quorum, self.rng.choice([1, 1, 1, 2, 3])):
            if node_id in cluster.running:
                await cluster.kill(node_id)
        await asyncio.sleep(self.rng.uniform(0, 2.0))
        cluster.network.heal()
        starting = [cluster.start(it) for it in cluster.first_quorum if it not in cluster.running]
        await asyncio.gather(*starting)

    # what must hold

    def check(self) -> None:
        assert len(set(self.producer_ids)) == len(self.producer_ids)
        for nameserver in self.cluster.running.values():
            there = {topic.name: topic for topic in nameserver.lookups.topics()}
            for name, topic in self.created.items():
                if name in self.unknown:
                    continue  # its deletion may have been made
                assert (name in there) == (name not in self.deleted), name
                if name in there:
                    assert (there[name].number, there[name].topic_id) == (topic.number, topic.topic_id)
            assert there.keys() <= self.created.keys() | self.unknown, "nothing is invented"
            for topic in there.values():
                assert self.numbers.setdefault(topic.number, topic.name) == topic.name


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_answered_holds_on_every_node(seed: int) -> None:
    history = History(seed)
    simulate(history.run())
    assert len(history.created) > 50
    assert len(history.deleted) > 2


def test_all_nodes_hear_of_the_same_changes_in_the_same_order() -> None:
    async def scenario() -> None:
        history = History(99)
        cluster = history.cluster
        await cluster.start_all()
        heard: dict[int, list[tuple[Any, ...]]] = {node_id: [] for node_id in cluster.running}

        def listener(node_id: int) -> Any:
            def listen(event: Event) -> None:
                if isinstance(event, TopicCreated | TopicDeleted):
                    heard[node_id].append((type(event), event.topic.number))

            return listen

        for node_id, nameserver in cluster.running.items():
            nameserver.subscribe(listener(node_id))
        end = asyncio.get_running_loop().time() + 20
        cluster.network.loss, cluster.network.repeats = 0.1, 0.1
        await asyncio.gather(*(history.client(end) for _ in range(3)))
        cluster.network.heal()
        await cluster.settled()
        assert heard[1] == heard[2] == heard[3]
        assert len(heard[1]) > 50
        await cluster.close()

    simulate(scenario())
