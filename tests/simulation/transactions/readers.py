"""Readers of committed transactions, and those who ask for offsets that were committed in transactions."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.oracle import require
from tests.simulation.transactions.atomicity import Atomicity
from tests.simulation.whole.admin import ELSEWHERE
from tests.simulation.whole.client import Client, Partition
from tests.simulation.whole.clients import NONE, TOPIC_UNKNOWN, Work, may_be_read, split_batches
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.ledger import NOTHING, Place

from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import READ_COMMITTED, FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from mainstem.protocol.messages.transaction_administration import ListTransactionsRequest

UNFINISHED = ("Ongoing", "PrepareCommit", "PrepareAbort")


async def unfinished_transactions(work: Work) -> list[str]:
    """The transactions that are open or ending, by the coordinators on all nodes, and the nodes that do not tell."""
    client, found = work.client(), []
    for node_id in work.cluster.serving_clients:
        request = ListTransactionsRequest(state_filters=UNFINISHED, producer_id_filters=())
        try:
            answer = await client.ask(node_id, request, 0)
        except NoAnswer:
            found.append(f"node {node_id} does not answer")
            continue
        if answer.error_code:
            found.append(f"node {node_id}: {ErrorCode(answer.error_code).name}")
        found += [f"{one.transactional_id} is {one.transaction_state}" for one in answer.transaction_states]
    client.close()
    return found


class CommittedReader:
    """Reads partitions at their leaders, on and on, or anywhere."""

    def __init__(self, work: Work, atomicity: Atomicity, rng: random.Random) -> None:
        self._work = work
        self._atomicity = atomicity
        self._rng = rng
        self._client = work.client()
        self._next: dict[Partition, int] = {}

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.02, 0.1, 0.5)
            if there := self._work.partitions():
                topic, partition = self._rng.choice(there)
                place = Partition(topic.topic_id, partition)
                offset = self._next.get(place, 0)
                if self._rng.random() < 0.4:
                    offset = self._rng.randint(0, offset)
                try:
                    if self._rng.random() < 0.2:
                        await self.last_stable_offset(topic, partition)
                    else:
                        await self.read(topic, partition, offset, self._rng.choice([1, 500, 5000, 1 << 20]))
                except NoAnswer:
                    self._client.doubt(place)

    async def read(self, topic: Topic, partition: int, offset: int, bytes_max: int) -> int:
        """The offset at which it goes on. Raises `NoAnswer`, where there is none now as well."""
        place, history = Partition(topic.topic_id, partition), self._work.cluster.history
        led = await self._client.leader(topic.name, place)
        by_id = self._rng.random() < 0.5
        wanted = FetchPartition(
            partition=partition, current_leader_epoch=led.epoch, fetch_offset=offset, partition_max_bytes=bytes_max
        )
        named: dict[str, Any] = {"topic_id": topic.topic_id} if by_id else {"topic": topic.name}
        request = FetchRequest(
            max_wait_ms=self._rng.choice([0, 0, 200]), min_bytes=self._rng.choice([0, 1]),
            isolation_level=READ_COMMITTED, topics=(FetchTopic(partitions=(wanted,), **named),),
        )  # fmt: skip
        response = await self._client.ask(led.node_id, request, self._rng.choice([13, 16] if by_id else [4, 11, 12]))
        ((found,),) = [answered.partitions for answered in response.responses]
        what = f"node {led.node_id}: {topic.name}-{partition}"
        node = self._work.cluster.serving_clients[led.node_id]
        queue_id = topic.queue_id(partition)
        overtaken = found.error_code == ErrorCode.KAFKA_STORAGE_ERROR and offset < history.queue(queue_id).log_start
        require(  # what was aborted of records that are deleted meanwhile nobody can tell: readers come again
            overtaken
            or may_be_read(self._work.cluster, found.error_code)
            or bool(node.disk1.troubles or node.disk2.troubles),
            f"{what}: {found}",
        )
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._next[place] = history.queue(queue_id).log_start
        if found.error_code != NONE:
            raise NoAnswer
        batches = list(split_batches(bytes(found.records or b"")))
        end = history.check_batches(what, queue_id, offset, batches)
        stable = found.last_stable_offset
        require(end <= max(stable, offset), f"{what}: read to {end}, past the last stable offset {stable}", "E")
        require(stable <= found.high_watermark, f"{what}: {stable} of {found.high_watermark} offsets are stable", "E")
        if self._work.wanted(topic):
            self._atomicity.check_stable(what, queue_id, stable)
            self._atomicity.check_committed(what, queue_id, batches, found.aborted_transactions or ())
        self._next[place] = max(end, offset)
        return max(end, offset)

    async def last_stable_offset(self, topic: Topic, partition: int) -> int:
        """Raises `NoAnswer`, where there is none now as well."""
        led = await self._client.leader(topic.name, Partition(topic.topic_id, partition))
        asked = ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=led.epoch, timestamp=LATEST_TIMESTAMP
        )
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=READ_COMMITTED,
            topics=(ListOffsetsTopic(name=topic.name, partitions=(asked,)),),
        )  # fmt: skip
        response = await self._client.ask(led.node_id, request, 7)
        ((found,),) = [answered.partitions for answered in response.topics]
        what = f"node {led.node_id}: {topic.name}-{partition}"
        require(may_be_read(self._work.cluster, found.error_code), f"{what}: offsets: {found}")
        if found.error_code != NONE:
            raise NoAnswer
        if self._work.wanted(topic):
            self._atomicity.check_stable(what, topic.queue_id(partition), found.offset)
        return int(found.offset)

    def doubt(self, topic: Topic, partition: int) -> None:
        self._client.doubt(Partition(topic.topic_id, partition))


class TransactionalAsker:
    """Asks for offsets that were committed in transactions, those alone that are stable, or whatever there is."""

    def __init__(self, work: Work, atomicity: Atomicity, rng: random.Random) -> None:
        self._work = work
        self._atomicity = atomicity
        self._rng = rng
        self._client: Client = work.client()

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.02, 0.1, 0.5)
            if places := self._atomicity.places():
                await self.ask(self._rng.choice(places), stable=self._rng.random() < 0.5)

    async def ask(self, place: Place, *, stable: bool) -> int | None:
        """The offset; None where there is no answer."""
        group, topic_id, partition = place
        topic = self._work.cluster.ledger.fates[topic_id].topic
        floor = self._atomicity.floor(place) if stable else NOTHING
        topics = (OffsetFetchRequestTopics(name=topic.name, partition_indexes=(partition,)),)
        request = OffsetFetchRequest(
            groups=(OffsetFetchRequestGroup(group_id=group, topics=topics),), require_stable=stable
        )
        try:
            node_id = await self._client.coordinator(group)
            response = await self._client.ask(node_id, request, self._rng.choice([8, 9]))
        except NoAnswer:
            self._client.doubt_coordinator(group)
            return None
        (answer,) = response.groups
        what = f"node {node_id}"
        if answer.error_code != NONE:
            require(answer.error_code in ELSEWHERE, f"{what}: offsets of {group}: {answer}")
            self._client.doubt_coordinator(group)
            return None
        ((item,),) = [one.partitions for one in answer.topics]
        unstable = {ErrorCode.UNSTABLE_OFFSET_COMMIT} if stable else set()
        allowed = {NONE, *TOPIC_UNKNOWN, *unstable}
        require(item.error_code in allowed, f"{what}: offset of {group}: {item}", "E")
        if item.error_code != NONE:
            return None
        if self._work.wanted(topic):
            self._atomicity.check_offset(what, place, item.committed_offset, floor)
        return int(item.committed_offset)
