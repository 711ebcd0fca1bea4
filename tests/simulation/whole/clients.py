"""The actions of clients of whole nodes: produce, read, commit offsets, and change topics, all through requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from tests.simulation.cluster.clients import KEYS, SIZES
from tests.simulation.oracle import Violation, require
from tests.simulation.whole.client import Client, Partition
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.connection import NoAnswer

from mainstem.model import FACTOR_OF_CLUSTER, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest
from mainstem.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import NewRecord, build_batch
from mainstem.storage.agreed_clock import BOUND_MS

NONE = ErrorCode.NONE
TOPIC_UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
PRODUCE_ANSWERS = TOPIC_UNKNOWN | {
    NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
}
"""The answers that a well-behaved producer may be told."""

REFUSALS = TOPIC_UNKNOWN | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_TIMESTAMP,
}
"""Answers that mean: not in the log, nor will it be."""

READ_ANSWERS = TOPIC_UNKNOWN | {
    NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
}
TIMESTAMP_AFTER_MS_MAX = 3_600_000
"""The default of message.timestamp.after.max.ms."""

IN_FLIGHT_MAX = 5
"""As Kafka's idempotent producers have."""

OVERTAKEN = 0.2
"""How often the first of several requests arrives as the last."""

BATCH_HEAD_BYTES = 12
"""Of a batch, what its length does not count."""


REBORN = "reborn"
"""How the names of topics begin that one actor has for itself: see `reborn`."""

WATCHMANS_PATIENCE_SECONDS = 10.0
"""Longer than a node stands still, or is cut off."""

QUESTIONS_MAX = 200
"""That a watchman has asked and has no answer to: for as long as a node stands still, mostly."""


@dataclass(slots=True)
class Batch:
    """As it is sent, each time the same."""

    topic: Topic
    partition: int
    data: bytes
    record_count: int
    crc: int

    @property
    def place(self) -> Partition:
        return Partition(self.topic.topic_id, self.partition)

    @property
    def queue_id(self) -> int:
        return self.topic.queue_id(self.partition)


class Work:
    """Shared by all clients."""

    def __init__(self, cluster: WholeCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.ending = False
        """Nothing new is begun any more."""
        self.acknowledged = 0
        self.read_batches = 0
        self.commits = 0
        self.offsets_asked = 0
        self.reborn_asked = 0
        self.assignments = 0
        self.watermarks_asked = 0
        self._values = 0
        self._names = 0
        self.compaction: random.Random | None = None
        """The draw that decides which topics are compacted; None: nobody compacts any."""
        self.compacting: Sequence[str] = ["compact"]
        """The policies of compacted topics."""
        self.factors: Callable[[], int] | None = None
        """Draws the replication factor of a new topic; None: all are as the cluster has it."""

    def replication_factor(self) -> int:
        """That of a new topic, as its client asks for it."""
        return self.factors() if self.factors is not None else FACTOR_OF_CLUSTER

    def new_name(self) -> str:
        self._names += 1
        return f"topic-{self._names}"

    def client(self) -> Client:
        return Client(self.cluster.clients_network, list(self.cluster.serving_clients), self.rng)

    def new_batch(
        self, topic: Topic, partition: int, producer: tuple[int, int, int], count: int, *, transactional: bool = False
    ) -> Batch:
        records = []
        for _ in range(count):
            self._values += 1
            value = b"%d " % self._values + bytes(self.rng.choice(SIZES))
            if "compact" in topic.settings.cleanup_policy:
                records.append(self._keyed_record())
            else:
                records.append(NewRecord(self.cluster.loop.now_ms(), None, value))
        new = build_batch(
            records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2],
            transactional=transactional,
        )  # fmt: skip
        return Batch(topic, partition, bytes(new.data), new.header.record_count, new.header.checksum)

    def _keyed_record(self) -> NewRecord:
        """One for a compacted topic, unlike all others: of few keys, often a tombstone."""
        rng = self.rng
        key = b"key %d" % min(rng.randrange(KEYS), rng.randrange(KEYS))
        value = None if rng.random() < 0.3 else bytes(rng.choice(SIZES))
        return NewRecord(self.cluster.loop.now_ms(), key, value, (("number", b"%d" % self._values),))

    def how_to_compact(self) -> dict[str, str]:
        """Configs of a compacted topic; none where nobody compacts."""
        rng = self.compaction
        if rng is None:
            return {}
        return {
            "cleanup.policy": rng.choice(self.compacting) if len(self.compacting) > 1 else self.compacting[0],
            "min.cleanable.dirty.ratio": rng.choice(["0.0", "0.5"]),
            "min.compaction.lag.ms": rng.choice(["0", "0", "0", "1500"]),
            "delete.retention.ms": rng.choice(["0", "500", "500", "3000"]),
        }

    def partitions(self) -> list[tuple[Topic, int]]:
        """Of topics that nobody wants to be gone, and that clients may write to."""
        topics = (topic for topic in self.kept() if not topic.internal)
        return [(topic, partition) for topic in topics for partition in range(topic.partitions)]

    def kept(self) -> list[Topic]:
        """Those that nobody wants to be gone, internal ones included."""
        return [topic for topic in self.cluster.ledger.kept() if not topic.name.startswith(REBORN)]

    def topics_ever(self) -> int:
        """How many there were so far."""
        return sum(not fate.topic.name.startswith(REBORN) for fate in self.cluster.ledger.fates.values())

    def wanted(self, topic: Topic) -> bool:
        return not self.cluster.ledger.fates[topic.topic_id].unwanted

    async def pause(self, *seconds: float) -> None:
        await asyncio.sleep(self.rng.choice(seconds))


def may_be_told(cluster: WholeCluster, node_id: int, error_code: int) -> bool:
    """A node whose clock is behind may refuse true timestamps until it knows the others' clocks; every node where a
    majority's clocks are behind: of those that agree, it goes by the earliest."""
    behind_ms = max(-cluster.serving_clients[node_id].clock.ahead_ms_min, BOUND_MS - cluster.clocks_off()[0])
    late = error_code == ErrorCode.INVALID_TIMESTAMP and behind_ms >= TIMESTAMP_AFTER_MS_MAX
    return late or error_code in PRODUCE_ANSWERS


def may_be_read(cluster: WholeCluster, error_code: int) -> bool:
    """Brokers without storage lose sight of it."""
    return error_code in READ_ANSWERS or (cluster.stores_apart and error_code == ErrorCode.KAFKA_STORAGE_ERROR)


class Producer:
    """One producer with one request in flight per partition. Idempotent ones ask for acks=all and send a batch again
    until they know what became of it; others go on after a while."""

    def __init__(self, work: Work, acks: int, *, idempotent: bool = False) -> None:
        self._work = work
        self._rng = work.rng
        self._client = work.client()
        self._acks = -1 if idempotent else acks
        self._idempotent = idempotent
        self._producer_id = -1
        self._next: dict[Partition, int] = {}
        self._doubtful: set[Partition] = set()
        """The fate of the last batch is unknown, so nothing more can be sent."""

    async def run(self) -> None:
        if self._idempotent:
            await self.begin()
        while not self._work.ending:
            await self.produce()
            await self._work.pause(0.0, 0.01, 0.1, 0.5)

    async def begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        while not self._work.ending and self._producer_id < 0:
            try:
                response = await self._client.ask(self._client.any_node(), request, 4)
            except NoAnswer:
                await self._work.pause(0.05, 0.2)
                continue
            if response.error_code == NONE:
                self._work.cluster.ledger.new_producer(response.producer_id)
                self._producer_id = response.producer_id
            else:
                require(response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer id: {response}")

    async def produce(self) -> None:
        """A batch for each of a few partitions."""
        rng = self._rng
        open_ones = [one for one in self._work.partitions() if Partition(one[0].topic_id, one[1]) not in self._doubtful]
        if (self._idempotent and self._producer_id < 0) or not open_ones:
            return
        waiting: dict[Partition, Batch] = {}
        for topic, partition in rng.sample(open_ones, min(len(open_ones), rng.choice([1, 1, 2, 4]))):
            place = Partition(topic.topic_id, partition)
            producer = (self._producer_id, 0 if self._idempotent else -1, self._sequence(place))
            waiting[place] = self._work.new_batch(topic, partition, producer, rng.choice([1, 1, 3]))
        tries = 0
        while waiting:
            await self.send(waiting)
            for place in [place for place, batch in waiting.items() if not self._work.wanted(batch.topic)]:
                del waiting[place]
                self._doubtful.add(place)
            tries += 1
            if waiting:
                if self._work.ending or (not self._idempotent and tries > 3):
                    if self._idempotent:
                        self._doubtful.update(waiting)
                    return
                await self._work.pause(0.0, 0.05, 0.2)

    def _sequence(self, place: Partition) -> int:
        return self._next.get(place, 0) if self._idempotent else -1

    async def send(self, waiting: dict[Partition, Batch]) -> None:
        """Send batches to their leaders; those that are acknowledged leave `waiting`."""
        by_node: dict[int, list[Batch]] = {}
        for place, batch in waiting.items():
            try:
                led = await self._client.leader(batch.topic.name, place)
            except NoAnswer:
                continue
            node_id = led.node_id if self._rng.random() < 0.95 else self._client.any_node()
            by_node.setdefault(node_id, []).append(batch)
        for node_id, batches in by_node.items():
            try:
                await self._send_to(node_id, batches, waiting)
            except NoAnswer:
                for batch in batches:
                    self._client.doubt(batch.place)

    async def _send_to(self, node_id: int, batches: list[Batch], waiting: dict[Partition, Batch]) -> None:
        by_id = self._rng.random() < 0.5
        version = 13 if by_id else self._rng.choice([7, 9, 12])
        request = produce_request(batches, self._acks, by_id=by_id)
        connection = self._client.connection(node_id)
        for batch in batches:
            self._work.cluster.history.sending(batch.data)
        answer = connection.send(request, version)
        frame = await connection.answered(answer, self._client.patience())
        if self._acks == 0:
            require(frame == b"", f"node {node_id}: an answer to acks=0")
            waiting.clear()
            return
        response = connection.read(request, version, frame)
        for batch, answered in zip(in_order(batches), flat(response.responses, "partition_responses"), strict=True):
            what = f"node {node_id}: {batch.topic.name}-{batch.partition} of producer {self._producer_id}"
            require(may_be_told(self._work.cluster, node_id, answered.error_code), f"{what}: {answered}", "D")
            if answered.error_code != NONE:
                self._refused(batch, answered.error_code)
                continue
            self._acknowledged(what, batch, answered.base_offset)
            waiting.pop(batch.place, None)

    def _refused(self, batch: Batch, error_code: int) -> None:
        self._client.doubt(batch.place)
        if error_code in REFUSALS:
            self._work.cluster.history.refused(batch.crc)

    def _acknowledged(self, what: str, batch: Batch, base_offset: int) -> None:
        self._work.acknowledged += 1
        self._next[batch.place] = self._sequence(batch.place) + batch.record_count
        if self._work.wanted(batch.topic):
            history = self._work.cluster.history
            history.acknowledged(batch.queue_id, base_offset, batch.crc, promised=self._acks == -1)
            if self._acks == -1:
                self._check_copies(what, batch, base_offset)

    def _check_copies(self, what: str, batch: Batch, base_offset: int) -> None:
        """An acknowledged batch is on as many nodes as its topic demands, and on a majority."""
        cluster = self._work.cluster
        queue = cluster.history.queue(batch.queue_id)
        require(base_offset < queue.end, f"{what}: acknowledged at {base_offset}, committed are {queue.end}", "A")
        kept = queue.batches[queue.place(base_offset)]
        demanded = max(batch.topic.settings.min_insync_replicas, cluster.copies_of(batch.topic, kept.group) // 2 + 1)
        copies = cluster.holders(kept.group, kept.index)
        require(copies >= demanded, f"{what}: acknowledged at {base_offset} with {copies} copies of {demanded}", "A")


class PipeliningProducer(Producer):
    """Idempotent, with up to five requests in flight, from the first ones for a partition on; what is not acknowledged
    is sent again, in order, unless the first is overtaken, as happens to librdkafka's. Nothing behind a batch that
    failed is taken, unless that is in the log from when it was sent before: who was deposed between the two answers for
    the one that it knows already, and refuses the other. Nor is anything called out of order, upon which Kafka's
    clients would send what is unanswered with another epoch."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, -1, idempotent=True)

    async def produce(self) -> None:
        rng, work = self._rng, self._work
        there = [one for one in work.partitions() if Partition(one[0].topic_id, one[1]) not in self._doubtful]
        if self._producer_id < 0 or not there:
            return
        topic, partition = rng.choice(there)
        place = Partition(topic.topic_id, partition)
        sequence, batches = self._sequence(place), []
        for _ in range(rng.randint(2, IN_FLIGHT_MAX)):
            batches.append(work.new_batch(topic, partition, (self._producer_id, 0, sequence), rng.choice([1, 1, 3])))
            sequence += batches[-1].record_count
        while batches and not work.ending and work.wanted(topic):
            try:
                led = await self._client.leader(topic.name, place)
                await self._send_all(led.node_id, batches)
            except NoAnswer:
                self._client.doubt(place)
            if batches:
                await work.pause(0.0, 0.05, 0.2)
        if batches:
            self._doubtful.add(place)

    async def _send_all(self, node_id: int, batches: list[Batch]) -> None:
        """Those that are acknowledged leave `batches`, from the front on."""
        version, connection = self._rng.choice([7, 9, 12, 13]), self._client.connection(node_id)
        requests = [produce_request([batch], -1, by_id=version >= 13) for batch in batches]
        for batch in batches:
            self._work.cluster.history.sending(batch.data)
        order = list(range(len(requests)))
        if self._rng.random() < OVERTAKEN:
            order.append(order.pop(0))
        sent = {place: connection.send(requests[place], version) for place in order}
        answers = [sent[place] for place in sorted(sent)]
        patience = self._client.patience()
        failed: list[Batch] = []
        for request, batch, answer in zip(requests, list(batches), answers, strict=True):
            response = connection.read(request, version, await connection.answered(answer, patience))
            ((answered,),) = [topic.partition_responses for topic in response.responses]
            what = f"node {node_id}: {batch.topic.name}-{batch.partition} of producer {self._producer_id}"
            require(may_be_told(self._work.cluster, node_id, answered.error_code), f"{what}: {answered}", "D")
            if answered.error_code != NONE:
                failed.append(batch)
                self._refused(batch, answered.error_code)
                continue
            lost = not all(self._work.cluster.history.has_in_log(one.queue_id, one.crc) for one in failed)
            require(not lost, f"{what}: {answered} behind one that failed", "D")
            batches.remove(batch)
            self._acknowledged(what, batch, answered.base_offset)


def in_order(batches: list[Batch]) -> list[Batch]:
    """As `produce_request` has them."""
    topics = list(dict.fromkeys(batch.topic.topic_id for batch in batches))
    return sorted(batches, key=lambda batch: topics.index(batch.topic.topic_id))


def produce_request(batches: list[Batch], acks: int, *, by_id: bool) -> ProduceRequest:
    by_topic: dict[UUID, list[Batch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic.topic_id, []).append(batch)
    topics = []
    for topic_id, of_topic in by_topic.items():
        data = tuple(PartitionProduceData(index=batch.partition, records=batch.data) for batch in of_topic)
        named: dict[str, Any] = {"topic_id": topic_id} if by_id else {"name": of_topic[0].topic.name}
        topics.append(TopicProduceData(partition_data=data, **named))
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=tuple(topics))


def flat(topics: Any, partitions: str) -> Iterator[Any]:
    for topic in topics:
        yield from getattr(topic, partitions)


class Reader:
    """Follows partitions at their leaders; what it was once shown stays."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._rng = work.rng
        self._client = work.client()
        self._next: dict[Partition, int] = {}
        self._seen: dict[Partition, tuple[int, int, int]] = {}
        """(leader epoch, log start, high watermark), the newest of each."""

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.02, 0.2, 1.0)
            if there := self._work.partitions():
                topic, partition = self._rng.choice(there)
                try:
                    await self.read(topic, partition)
                except NoAnswer:
                    self._client.doubt(Partition(topic.topic_id, partition))

    async def read(self, topic: Topic, partition: int) -> None:
        """Read on, or anywhere, or ask for the offsets. Raises `NoAnswer`."""
        place = Partition(topic.topic_id, partition)
        led = await self._client.leader(topic.name, place)
        if self._rng.random() < 0.3:
            await self._list_offsets(topic, place, led.node_id, led.epoch)
            return
        offset = self._next.get(place, 0)
        if self._rng.random() < 0.3:
            offset = self._rng.randint(0, offset)
        by_id = self._rng.random() < 0.5
        found = await self.fetch(topic, place, led.node_id, led.epoch, offset, by_id=by_id)
        what = f"node {led.node_id}: {topic.name}-{partition}"
        require(
            may_be_read(self._work.cluster, found.error_code) or self._node_is_troubled(led.node_id), f"{what}: {found}"
        )
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._check_out_of_range(what, topic, place, offset, led.epoch)
            return
        if found.error_code != NONE:
            self._client.doubt(place)
            return
        batches = list(split_batches(bytes(found.records or b"")))
        queue_id = topic.queue_id(partition)
        end = self._work.cluster.history.check_batches(what, queue_id, offset, batches)
        self._work.read_batches += len(batches)
        self._check_offsets(what, place, led.epoch, found.log_start_offset, found.high_watermark)
        require(end <= max(found.high_watermark, offset), f"{what}: read to {end}, beyond {found.high_watermark}", "B")
        self._next[place] = max(end, offset)

    async def fetch(self, topic: Topic, place: Partition, node_id: int, epoch: int, offset: int, *, by_id: bool) -> Any:
        wanted = FetchPartition(
            partition=place.index, current_leader_epoch=epoch, fetch_offset=offset,
            partition_max_bytes=self._rng.choice([1, 500, 5000, 1 << 20]),
        )  # fmt: skip
        named: dict[str, Any] = {"topic_id": topic.topic_id} if by_id else {"topic": topic.name}
        request = FetchRequest(
            max_wait_ms=self._rng.choice([0, 0, 100, 500]), min_bytes=self._rng.choice([0, 1, 10_000]),
            topics=(FetchTopic(partitions=(wanted,), **named),),
        )  # fmt: skip
        version = self._rng.choice([13, 15, 16] if by_id else [9, 11, 12])
        response = await self._client.ask(node_id, request, version)
        if response.error_code:
            raise Violation(f"node {node_id}: {response}")
        ((found,),) = [answered.partitions for answered in response.responses]
        return found

    def _node_is_troubled(self, node_id: int) -> bool:
        node = self._work.cluster.serving_clients[node_id]
        return bool(node.disk1.troubles or node.disk2.troubles)

    def _check_out_of_range(self, what: str, topic: Topic, place: Partition, offset: int, epoch: int) -> None:
        """A reader that asked for an offset that was there must have been overtaken by the log start."""
        queue = self._work.cluster.history.queue(topic.queue_id(place.index))
        before, _, high_watermark = self._seen.get(place, (0, 0, 0))
        below = offset < queue.log_start
        require(
            below or epoch < before or offset > high_watermark or not self._work.wanted(topic),
            f"{what}: nothing at {offset} in epoch {epoch}, the log starts at {queue.log_start}, {high_watermark} "
            f"was shown in epoch {before}",
            "B",
        )
        self._next[place] = max(self._next.get(place, 0), queue.log_start)

    def _check_offsets(self, what: str, place: Partition, epoch: int, log_start: int, high_watermark: int) -> None:
        before, start, end = self._seen.get(place, (0, 0, 0))
        if epoch < before or self._work.cluster.stores_apart:  # a broker tells what it knew when it saw a leader last
            return
        require(high_watermark >= end, f"{what} ends at {high_watermark} in epoch {epoch}, at {end} in {before}", "B")
        require(log_start >= start, f"{what} starts at {log_start} in epoch {epoch}, at {start} in {before}", "B")
        self._seen[place] = (epoch, log_start, high_watermark)

    async def _list_offsets(self, topic: Topic, place: Partition, node_id: int, epoch: int) -> None:
        timestamp = self._rng.choice([LATEST_TIMESTAMP, EARLIEST_TIMESTAMP, self._work.cluster.loop.now_ms() - 500])
        asked = ListOffsetsPartition(partition_index=place.index, current_leader_epoch=epoch, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic.name, partitions=(asked,)),))
        promised_end = self._work.cluster.history.queue(topic.queue_id(place.index)).promised_end
        response = await self._client.ask(node_id, request, 7)
        ((found,),) = [answered.partitions for answered in response.topics]
        what = f"node {node_id}: {topic.name}-{place.index}"
        reads_batches = timestamp >= 0  # one of which may be damaged on this node
        allowed = may_be_read(self._work.cluster, found.error_code) or (
            reads_batches and self._node_is_troubled(node_id)
        )
        require(allowed, f"{what}: offsets: {found}")
        if found.error_code != NONE:
            self._client.doubt(place)
            return
        if not self._work.wanted(topic):
            return
        queue = self._work.cluster.history.queue(topic.queue_id(place.index))
        require(found.offset <= queue.end, f"{what}: offset {found.offset} of {queue.end}", "B")
        _before, start, end = self._seen.get(place, (0, 0, 0))
        if timestamp == EARLIEST_TIMESTAMP:
            self._check_offsets(what, place, epoch, found.offset, max(end, found.offset))
        elif timestamp == LATEST_TIMESTAMP:
            self._work.cluster.history.check_current(what, found.offset, promised_end)
            self._check_offsets(what, place, epoch, start, found.offset)
        elif found.offset >= 0:
            require(found.timestamp >= timestamp, f"{what}: {found} for {timestamp}", "B")
            kept = queue.batches[queue.place(found.offset)]
            require(kept.max_timestamp >= found.timestamp, f"{what}: {found}, the batch there is {kept}", "B")


class Watchman:
    """Asks one node, whoever leads by now, where queues end, again and again without waiting for answers: a node that
    stood still answers when it goes on. An answer that claims to be current is."""

    def __init__(self, work: Work, node_id: int) -> None:
        self._work = work
        self._rng = work.rng
        self._node_id = node_id
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self._work.ending:
                await self._work.pause(0.01, 0.05, 0.1)
                there = self._work.partitions()
                if there and len(self._asking) < QUESTIONS_MAX:
                    chosen = self._rng.sample(there, min(len(there), 3))
                    asking = tasks.create_task(self._ask_in_vain_or_not(chosen))
                    self._asking.add(asking)
                    asking.add_done_callback(self._asking.discard)

    async def _ask_in_vain_or_not(self, chosen: list[tuple[Topic, int]]) -> None:
        client = self._work.client()
        with suppress(NoAnswer):
            await self.ask(client, chosen)
        client.close()

    async def ask(self, client: Client, chosen: list[tuple[Topic, int]]) -> None:
        """Raises `NoAnswer`."""
        history, queues = self._work.cluster.history, {}
        topics = []
        for topic, partition in chosen:
            queue = history.queue(topic.queue_id(partition))
            queues[topic.name, partition] = topic, queue.promised_end
            asked = ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=LATEST_TIMESTAMP)
            topics.append(ListOffsetsTopic(name=topic.name, partitions=(asked,)))
        request = ListOffsetsRequest(replica_id=-1, topics=tuple(topics))
        response = await client.ask(self._node_id, request, 7, patience=WATCHMANS_PATIENCE_SECONDS)
        for answered in response.topics:
            for found in answered.partitions:
                topic, promised_end = queues[answered.name, found.partition_index]
                what = f"node {self._node_id}: {answered.name}-{found.partition_index}"
                require(may_be_read(self._work.cluster, found.error_code), f"{what}: offsets: {found}")
                if found.error_code == NONE and self._work.wanted(topic):
                    self._work.watermarks_asked += 1
                    check = partial(history.check_current, what, found.offset, promised_end)
                    self._work.cluster.guard(check)


def split_batches(records: bytes) -> Iterator[bytes]:
    """Whole batches. Raises `Violation` for a part of one."""
    position = 0
    while position < len(records):
        end = position + BATCH_HEAD_BYTES + int.from_bytes(records[position + 8 : position + 12], "big")
        require(end <= len(records), f"a batch of {end - position} bytes in {len(records) - position}")
        yield records[position:end]
        position = end
