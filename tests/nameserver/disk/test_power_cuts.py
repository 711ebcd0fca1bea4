"""Random changes of the metadata with the power going at any write, and starts that recover from it."""

from __future__ import annotations

import asyncio
import random
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.files import PowerLoss, SimulatedFiles

from mainstem.model import NewTopic, Node, Topic
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.nameserver import Nameserver

NODE = Node(node_id=1, host="127.0.0.1", port=9092)
CONFIG = NameserverConfig(log_bytes_max=4096)  # about one snapshot per 30 changes
CHANGES_PER_SESSION = 60
DEFAULT_RETENTION_MS = 604_800_000

View = dict[str, tuple[int, int]]
"""Name → (partitions, retention_ms)."""


class History:
    """The answers so far, and the state that would hold if the change in flight had been made too: of topics that are
    created together the first ones may be there."""

    def __init__(self, seed: int) -> None:
        self.randomness = random.Random(seed)
        self.disk = SimulatedFiles(seed)
        self.answered: View = {}
        self.in_flight: View = {}
        self.parts_in_flight: list[View] = []
        self.topic_ids: dict[int, uuid.UUID] = {}
        self.cluster_id: str | None = None

    async def session(self, cut_after: int) -> None:
        """Start, change things until the power goes or enough was done, stop."""
        self.disk.cut_power(after=cut_after)
        nameserver = await self._open()
        try:
            self._check(nameserver)
            for _ in range(CHANGES_PER_SESSION):
                self.in_flight = dict(self.answered)
                self.parts_in_flight = []
                await self._change(nameserver)
                self.answered = self.in_flight
        finally:
            await nameserver.close()

    def restart(self) -> None:
        """Find the disk as the power cut left it, and check what is on it."""
        self.disk.crash()

        async def look() -> None:
            nameserver = await self._open()
            self._check(nameserver)
            await nameserver.close()

        asyncio.run(look())

    async def _open(self) -> Nameserver:
        return await Nameserver.open(self.disk, random.Random(self.randomness.random()), CONFIG, NODE)

    def _check(self, nameserver: Nameserver) -> None:
        found = {t.name: (t.partitions, t.settings.retention_ms) for t in nameserver.lookups.topics()}
        assert found in (self.answered, self.in_flight, *self.parts_in_flight)
        self.parts_in_flight = []
        self.answered = self.in_flight = found
        for topic in nameserver.lookups.topics():
            assert self.topic_ids.setdefault(topic.number, topic.topic_id) == topic.topic_id
        assert self.cluster_id in (None, nameserver.lookups.cluster_id())
        self.cluster_id = nameserver.lookups.cluster_id()

    async def _change(self, nameserver: Nameserver) -> None:
        if self.randomness.randrange(8) == 0:
            await self._create_together(nameserver)
            return
        name = f"{self.randomness.choice('abcd')}{self.randomness.randrange(4)}"
        if name not in self.in_flight:
            self.in_flight[name] = (self.randomness.randint(1, 5), DEFAULT_RETENTION_MS)
            topic = await nameserver.administration.create_topic(name, self.in_flight[name][0], 1, {})
            assert self.topic_ids.setdefault(topic.number, topic.topic_id) == topic.topic_id
            return
        partitions, retention_ms = self.in_flight[name]
        match self.randomness.randrange(3):
            case 0:
                self.in_flight[name] = (partitions + 2, retention_ms)
                await nameserver.administration.create_partitions(name, partitions + 2)
            case 1:
                self.in_flight[name] = (partitions, self.randomness.randint(1, 9))
                await nameserver.administration.alter_configs(name, {"retention.ms": str(self.in_flight[name][1])})
            case _:
                del self.in_flight[name]
                await nameserver.administration.delete_topics([name])

    async def _create_together(self, nameserver: Nameserver) -> None:
        names = [f"e{number}" for number in self.randomness.sample(range(40), self.randomness.randint(1, 30))]
        for name in names:
            if name not in self.in_flight:
                self.parts_in_flight.append(dict(self.in_flight))
                self.in_flight[name] = (1, DEFAULT_RETENTION_MS)
        known = set(self.answered)
        answers = await nameserver.administration.create_topics([NewTopic(name, 1, 1, {}) for name in names])
        assert [isinstance(answer, Topic) for answer in answers] == [name not in known for name in names]


@given(st.integers(0, 2**32), st.lists(st.integers(1, 220), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_was_answered_survives_and_nothing_is_invented(seed: int, cuts: list[int]) -> None:
    history = History(seed)
    for cut_after in cuts:
        try:
            asyncio.run(history.session(cut_after))
        except (PowerLoss, MetadataUnavailable):
            pass
        history.restart()


def test_the_power_may_go_at_every_single_write() -> None:
    """One fixed history, cut at each write in turn, snapshots and the very first start among them."""
    cut_after = 0
    while True:
        cut_after += 1
        history = History(7)
        try:
            asyncio.run(history.session(cut_after))
        except (PowerLoss, MetadataUnavailable):
            history.restart()
            continue
        assert cut_after > CHANGES_PER_SESSION
        assert any(path.endswith(".snapshot") for path in history.disk.paths())
        return
