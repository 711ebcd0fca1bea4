"""The broker over the real storage role, with clients who do everything at once, much of it wrong.

No sockets: frames go into the dispatcher from buffers that are overwritten as soon as it returns, as a connection's
are, so that whoever keeps a pointer into one is found out. Produce of all versions (good, twice, out of order, made
up), Fetch of all versions with and without sessions, peers that leave while they wait, topics that come and go, the
write cache giving up and segments recycled underneath, sometimes a disk that fails; disks and time are simulated.

Every request is answered or its peer is gone; what was acknowledged is read back at its offset, byte for byte. Under
the sanitizers (tools/sanitize tests/broker/test_hammer.py) it looks for memory used after it was given back.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.broker.harness import make_broker
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.small_node import SmallNode, simulated

from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.errors import MainstemError
from mainstem.model import QueueRange, Topic, queue_id_of
from mainstem.ports import Session, joined
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.headers import RequestHeader, parse_response_header, write_request_header
from mainstem.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from mainstem.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from mainstem.protocol.records import NewRecord, build_batch, read_batch_header

STEPS = 350
SEEDS = 12
PEERS = 6
TOPICS_MAX = 5
PARTITIONS_MAX = 4
PRODUCERS = 3
NAMELESS = UUID(int=0)
RECORDS_AT = 61


class Hammer:
    def __init__(self, node: SmallNode, seed: int, fails_at: int) -> None:
        self.node = node
        self.fails_at = fails_at
        self.failed = False
        """Disk 1 takes no more blocks: with those that wait for it, nothing is acknowledged any more."""
        self.random = random.Random(seed)
        self.fakes = make_broker(node.clock)
        broker = self.fakes.broker
        broker.store = node.storage.messages
        broker.queue_admin = node.storage.queues
        self.dispatcher = BrokerDispatcher(broker)
        self.topics: list[Topic] = []
        self.gone: list[Topic] = []
        self.correlation_id = 0
        self.clients = [Session("127.0.0.1", number, number) for number in range(PEERS)]
        self.pending: dict[Any, tuple[Session, Any]] = {}
        self.idle = asyncio.Event()
        self.sequences: dict[tuple[int, int], int] = {}
        self.sessions: dict[int, tuple[int, int, int]] = {}
        self.written: dict[tuple[int, int], bytes] = {}
        """Records by queue and base offset, of what was acknowledged."""
        self.acknowledged = self.compared = self.answered = self.lost = 0

    # --- frames -------------------------------------------------------------------------------------------

    def dispatched(self, frame: memoryview, session: Session) -> Any:
        """The reply to a frame, which half of the time comes as if it may be one of several."""
        if self.random.random() < 0.5:
            framed = bytearray(struct.pack(">i", len(frame)) + frame)
            with memoryview(framed) as frames:
                burst = self.dispatcher.dispatch_burst(frames, 0, len(framed), 10, 1 << 20, session)
            framed[:] = b"\xa5" * len(framed)
            if burst is not None:
                assert (burst.requests, burst.bytes_taken) == (1, len(framed))
                return burst
        exchange = self.dispatcher.dispatch(frame, session)
        assert exchange is not None, "there is memory for every request"
        return exchange.reply

    def send(self, api_key: int, version: int, request: Any, sent: Any, *, spoil: bool) -> None:
        """Dispatch a request and overwrite its bytes."""
        random_ = self.random
        self.correlation_id += 1
        header = RequestHeader(api_key, version, self.correlation_id, "hammer")
        body = bytearray(write_request_header(header) + codec.write(request, version))
        if spoil:
            first = len(body) - len(codec.write(request, version))
            for _ in range(random_.randint(1, 3)):
                place = random_.randrange(first, len(body))
                if random_.random() < 0.3:
                    del body[place:]
                    break
                body[place] = random_.choice((0, 1, 0x7F, 0x80, 0xFF, random_.randrange(256)))
        session = random_.choice(self.clients)
        try:
            with memoryview(body) as frame:
                reply = self.dispatched(frame, session)
        except MainstemError:
            assert spoil or request.acks == 0, "a sound request was taken for nonsense"
            self.lost += 1
            return
        finally:
            body[:] = b"\xa5" * len(body)
        if not isinstance(reply, (PromptFuture, asyncio.Future)):
            self.take(sent, reply)
        else:
            self.pending[reply] = session, sent
            reply.add_done_callback(self.replied)

    def replied(self, future: Any) -> None:
        _, sent = self.pending.pop(future)
        if not self.pending:
            self.idle.set()
        if future.cancelled() or future.exception() is not None:
            self.lost += 1
            return
        self.take(sent, future.result())

    def take(self, sent: Any, reply: Any) -> None:
        self.answered += 1
        if sent is None or reply is None:  # spoilt: nobody knows what it was
            return
        version, check = sent
        frame = joined(reply)[4:]
        check(version, frame)

    # --- produce ------------------------------------------------------------------------------------------

    def produce(self) -> None:
        random_ = self.random
        version = random_.randint(3, 13)
        batches: dict[tuple[int, int], list[bytes]] = {}
        of: dict[str | UUID, int] = {}
        data = []
        for topic in random_.choices(self.topics + self.gone[-1:], k=random_.randint(1, 4)):
            parts = []
            of[topic.name if version < 13 else topic.topic_id] = topic.number
            for _ in range(random_.randint(0, 4)):
                partition = random_.randint(-1 if random_.random() < 0.05 else 0, topic.partitions - 1)
                batch = self.batch(topic, partition)
                batches.setdefault((topic.number, partition), []).append(batch)
                parts.append(PartitionProduceData(index=partition, records=batch))
            name, topic_id = (topic.name, NAMELESS) if version < 13 else ("", topic.topic_id)
            data.append(TopicProduceData(name=name, topic_id=topic_id, partition_data=tuple(parts)))
        acks = random_.choice((-1, -1, 1, 0))
        request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=tuple(data))
        spoil = random_.random() < 0.2

        def check(version: int, frame: bytes) -> None:
            _, position = parse_response_header(frame, 0, version)
            response = codec.read(ProduceResponse, version, frame, position)
            for answers in response.responses:
                for answer in answers.partition_responses:
                    number = of[answers.name if version < 13 else answers.topic_id]
                    batch = batches[number, answer.index].pop(0)
                    if not answer.error_code:
                        known = self.written.setdefault(
                            (queue_id_of(number, answer.index), answer.base_offset), batch[RECORDS_AT:]
                        )
                        assert known == batch[RECORDS_AT:]
                        self.acknowledged += 1

        self.send(0, version, request, None if spoil else (version, check), spoil=spoil)

    def batch(self, topic: Topic, partition: int) -> bytes:
        random_ = self.random
        producer = random_.randrange(PRODUCERS) if random_.random() < 0.5 else -1
        values = [random_.randbytes(random_.choice((1, 40, 300, 9000))) for _ in range(random_.randint(1, 3))]
        sequence, key = -1, (producer, queue_id_of(topic.number, partition & 0xFF))
        if producer >= 0:
            sequence = self.sequences.get(key, 0)
            if random_.random() < 0.2:  # once more, or one that does not follow
                sequence = max(0, sequence - random_.randint(-2, 3))
                values = [b"repeated"] * len(values)
            else:
                self.sequences[key] = sequence + len(values)
                values = [b"repeated"] * len(values)
        new = build_batch(
            [NewRecord(1000 + number, None, value) for number, value in enumerate(values)],
            producer_id=producer,
            producer_epoch=min(producer, 0),
            base_sequence=sequence,
        )
        return bytes(new.data)

    # --- fetch --------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        random_ = self.random
        version = random_.randint(4, 18)
        session_id, epoch, session_version = 0, random_.choice((-1, -1, 0)) if version >= 7 else -1, version
        if version >= 7 and self.sessions and random_.random() < 0.5:
            session_id, epoch, session_version = self.sessions[random_.choice(list(self.sessions))]
            version = session_version if random_.random() < 0.95 else version
        topics, forgotten = [], []
        for topic in random_.choices(self.topics + self.gone[-1:], k=random_.randint(0 if session_id else 1, 4)):
            name, topic_id = (topic.name, NAMELESS) if version < 13 else ("", topic.topic_id)
            partitions = []
            for _ in range(random_.randint(0, 4)):
                partition = random_.randint(0, topic.partitions - 1 + (random_.random() < 0.05))
                (offsets,) = self.node.storage.messages.offsets([queue_id_of(topic.number, partition)]).result()
                end = offsets.high_watermark if offsets is not None else 0
                partitions.append(
                    FetchPartition(
                        partition=partition,
                        fetch_offset=random_.choice((end, end, random_.randint(0, end), end + (end % 7 == 0))),
                        partition_max_bytes=random_.choice((0, 100, 20_000, 1 << 20)),
                    )
                )
            topics.append(FetchTopic(topic=name, topic_id=topic_id, partitions=tuple(partitions)))
            if session_id and random_.random() < 0.3:
                gone = tuple(range(random_.randint(0, topic.partitions)))
                forgotten.append(ForgottenTopic(topic=name, topic_id=topic_id, partitions=gone))
        request = FetchRequest(
            max_wait_ms=random_.choice((0, 0, 100, 2000)),
            min_bytes=random_.choice((0, 1, 5000, 1 << 30)),
            max_bytes=random_.choice((0, 10_000, 1 << 20)),
            isolation_level=random_.randint(0, 1),
            session_id=session_id, session_epoch=epoch, topics=tuple(topics),
            forgotten_topics_data=tuple(forgotten),
        )  # fmt: skip
        spoil = random_.random() < 0.15
        if session_id:
            self.sessions[session_id] = session_id, epoch + 1, session_version
        numbers = {topic.topic_id if version >= 13 else topic.name: topic.number for topic in self.topics}

        def check(version: int, frame: bytes) -> None:
            _, position = parse_response_header(frame, 1, version)
            response = codec.read(FetchResponse, version, frame, position)
            if response.error_code:
                self.sessions.pop(session_id, None)
            elif response.session_id and not session_id:
                self.sessions[response.session_id] = response.session_id, 1, version
            for answers in response.responses:
                number = numbers.get(answers.topic if version < 13 else answers.topic_id)
                for answer in answers.partitions:
                    if number is not None and not answer.error_code:
                        self.compare(queue_id_of(number, answer.partition_index), answer.records)

        self.send(1, version, request, None if spoil else (version, check), spoil=spoil)

    def compare(self, queue_id: int, found: Any) -> None:
        data = b"".join(map(bytes, found)) if isinstance(found, tuple) else bytes(found or b"")
        position, expected = 0, None
        while position < len(data):
            size = 12 + struct.unpack_from(">i", data, position + 8)[0]
            header = read_batch_header(data[position : position + size])
            assert expected is None or header.base_offset == expected, "batches of one answer follow each other"
            known = self.written.get((queue_id, header.base_offset))
            assert known is None or known == data[position + RECORDS_AT : position + size]
            self.compared += known is not None
            expected = header.base_offset + header.last_offset_delta + 1
            position += size

    # --- what goes on underneath --------------------------------------------------------------------------

    async def create_topic(self) -> None:
        name = f"topic-{len(self.topics) + len(self.gone)}"
        topic = await self.fakes.metadata.create_topic(name, self.random.randint(1, PARTITIONS_MAX), 1, {})
        self.node.topics.append(topic)
        await self.node.storage.queues.create([QueueRange(topic.number, 0, topic.partitions)])
        self.topics.append(topic)

    async def delete_topic(self) -> None:
        topic = self.topics.pop(self.random.randrange(len(self.topics)))
        self.gone.append(topic)
        await self.fakes.metadata.delete_topics([topic.name])
        self.node.topics.remove(topic)
        self.node.deleted.add(topic.number)
        await self.node.storage.queues.delete([topic.number])

    async def step(self) -> None:
        chance = self.random.random()
        if self.failed:
            chance *= 0.97  # what changes topics is refused
        if chance < 0.45:
            self.produce()
        elif chance < 0.8:
            self.fetch()
        elif chance < 0.95:
            await asyncio.sleep(self.random.choice((0, 0, 0.01, 1)))
        elif chance < 0.97:
            self.dispatcher.disconnected(self.random.choice(self.clients))
        elif len(self.topics) > 1 and chance < 0.98:
            await self.delete_topic()
        elif len(self.topics) < TOPICS_MAX and chance < 0.99:
            await self.create_topic()
        else:
            await self.node.split()

    async def run(self) -> None:
        async with self.dispatcher:
            for _ in range(3):
                await self.create_topic()
            for number in range(STEPS):
                if number == self.fails_at:
                    self.node.disk1.fail("write", path=".wal")
                    self.failed = True
                await self.step()
            self.idle = asyncio.Event()
            async with asyncio.timeout(PATIENCE_SECONDS):
                if self.pending:
                    await self.idle.wait()
            await asyncio.sleep(1)  # for what was sent with acks=0
        for topic in self.topics:
            for partition in range(topic.partitions):
                queue_id = queue_id_of(topic.number, partition)
                found = await self.node.read_offsets(queue_id)
                missing = {base for queue, base in self.written if queue == queue_id} - set(found)
                start = self.node.offsets(queue_id).log_start
                assert not {base for base in missing if base >= start}
        assert len(self.node.storage.state.waiters) == 0
        assert self.node.storage.write_loop.backlog_bytes == 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_clients_who_do_everything_at_once(tmp_path: Path, seed: int) -> None:
    hammers: list[Hammer] = []

    def prepare(node: SmallNode) -> None:
        node.groups = 1 + seed % 3
        node.topics = []
        node.config = type(node.config)(
            write_cache_bytes=(0, 60_000, 1 << 20)[seed % 3],
            prune_seconds=1.0,
            retention_check_seconds=1e9,
            block_bytes_max=(4096, 20_000)[seed % 2],
        )

    async def story(node: SmallNode) -> None:
        hammers.append(Hammer(node, seed, STEPS // 2 if seed % 4 == 3 else STEPS))
        await hammers[0].run()

    simulated(tmp_path, story, prepare)
    (hammer,) = hammers
    assert hammer.acknowledged > 50
    assert hammer.compared > 20 or seed % 3 == 0
