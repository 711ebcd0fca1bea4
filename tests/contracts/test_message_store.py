"""`ports.MessageStore` and `ports.QueueAdmin`: the stores in memory, of one node and of several, answer as the storage
role does on real files.

The storage role is asked five times: with room for everything in its write cache; with none, so that reads come from
the journal; over a wire that carries nothing but plain data; and as a broker of another node asks it, over sockets and
over a simulated network.
"""

from __future__ import annotations

import asyncio
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from tests.fakes.clock import LoopClock
from tests.fakes.cluster import SimulatedNetwork
from tests.fakes.memory_store import MemoryStore
from tests.fakes.moving_store import MovingStore, NodeStore
from tests.fakes.wired_store import READS_PER_MESSAGE, WiredStore
from tests.harness.patience import PATIENCE_SECONDS
from tests.kernel.fetch.fetch_requests import key_of
from tests.kernel.fetch.fetch_world import asking, at, number_of, records_of, whole
from tests.storage.small_node import new_batch

from mainstem import kernel
from mainstem.kernel import scan_fetch
from mainstem.model import (
    SLOTS,
    AppendResult,
    BatchAppend,
    Buffer,
    Outcome,
    QueueOffsets,
    QueueRange,
    QueueRead,
    QueueSlice,
    TimestampOffset,
    queue_id_of,
)
from mainstem.ports import DiskUsage, File, Files, MessageStore, QueueAdmin, ReadingMode
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import FetchResponse
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.node_calls import NodeCalls
from mainstem.rpc.other_nodes import CallsWithBytes
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Reply
from mainstem.storage.cluster.queue_leadership import WriteGroupLeadership
from mainstem.storage.config import StorageConfig
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queues.cluster_queue_admin import ClusterQueueAdmin
from mainstem.storage.role import Storage
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage.serving.tail_sessions import TailSessions
from mainstem.storage.setup import StorageSetup
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.storage_link.remote_queues import RemoteQueueAdmin

GROUPS = 2
TOPIC = 1
QUEUE, OTHER = queue_id_of(TOPIC, 0), queue_id_of(TOPIC, 1)
NOBODY = queue_id_of(99, 0)
NO_OFFSETS = QueueOffsets(-1, -1, -1, -1, -1)
MAX_TIMESTAMP = -3
ROOM = 1 << 20
MANY = READS_PER_MESSAGE + 20


class Subject(ABC):
    """A store with the queues `QUEUE` and `OTHER`."""

    messages: MessageStore
    queues: QueueAdmin

    @abstractmethod
    def hold(self) -> None:
        """Let nothing more be committed."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    async def next_epoch(self) -> None:
        """Have the queues be led anew."""

    # --- what most cases do -------------------------------------------------------------------------------

    async def append(self, *batches: BatchAppend, acks: int = -1) -> list[AppendResult]:
        return await self.messages.append(batches, acks)

    async def fill(self, count: int, queue_id: int = QUEUE, size: int = 100) -> None:
        for number in range(count):
            (result,) = await self.append(new_batch(queue_id, size, timestamp=1000 + 10 * number))
            assert result.outcome is Outcome.OK

    async def read(
        self, offset: int, queue_id: int = QUEUE, bytes_max: int = ROOM, *, whole_first: bool = True
    ) -> QueueSlice:
        read = QueueRead(queue_id, offset, bytes_max)
        (found,) = await self.messages.read([read], ROOM, whole_first=whole_first)
        return found

    async def offsets(self, queue_id: int = QUEUE) -> QueueOffsets:
        (found,) = await self.messages.offsets([queue_id])
        assert found is not None
        return found


class Fake(Subject):
    def __init__(self) -> None:
        self.messages = self.queues = self._store = MemoryStore(LoopClock(), leader_epoch=1)

    def hold(self) -> None:
        self._store.hold()

    def release(self) -> None:
        self._store.release()

    async def next_epoch(self) -> None:
        self._store.leader_epoch += 1


class Moving(Subject):
    """One of two nodes whose write groups change leaders, and its view of the store."""

    def __init__(self) -> None:
        self._shared = MovingStore(LoopClock(), 1, (1, 2), lambda: 0.0)
        self.messages = self.queues = NodeStore(self._shared, 1)

    def hold(self) -> None:
        self._shared.hold()

    def release(self) -> None:
        self._shared.release()

    async def next_epoch(self) -> None:
        for node_id in (2, 1):
            self._shared.move(0, node_id)


class HeldFile:
    """`ports.File` whose commits wait for the gate."""

    def __init__(self, file: File, gate: asyncio.Event) -> None:
        self._file, self._gate = file, gate
        self.read, self.sync, self.size = file.read, file.sync, file.size
        self.fill, self.fill_in_memory = file.fill, file.fill_in_memory
        self.forget, self.lock, self.close = file.forget, file.lock, file.close

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        if sync:
            await self._gate.wait()
        await self._file.write(position, buffers, sync=sync)


class HeldFiles:
    """`ports.Files` whose commits wait for the gate."""

    def __init__(self, files: Files, gate: asyncio.Event) -> None:
        self._files, self._gate = files, gate
        self.names, self.rename, self.remove = files.names, files.rename, files.remove

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> File:
        return HeldFile(await self._files.open(path, create=create, reading=reading), self._gate)

    async def usage(self) -> DiskUsage:
        return await self._files.usage()


class OnDisk(Subject):
    """The storage role of a node alone."""

    def __init__(self, directory: Path, cache_bytes: int, *, wired: bool = False) -> None:
        self._directory = directory
        self._wired = wired
        self._config = StorageConfig(write_cache_bytes=cache_bytes, retention_check_seconds=1e9)
        self._disks = [DiskFiles(directory / name) for name in ("disk1", "disk2")]
        self._gate = asyncio.Event()
        self._gate.set()
        self._storage: Storage

    async def start(self) -> None:
        disk1, disk2 = self._disks
        self._storage = await Storage.open(StorageSetup(
            write_files=HeldFiles(disk1, self._gate), store_files=disk2, clock=LoopClock(), config=self._config,
            journal_config=JournalConfig(segment_bytes=1 << 20, pool_segments=0),
            store_config=QueueStoreConfig(read_cache_bytes=0),
            manifest_path=str(self._directory / "manifest.sqlite"), journal_path=str(self._directory / "disk1/journal"),
            slots=[slot % GROUPS for slot in range(SLOTS)], topics=list, was_deleted=lambda number: False,
        ))  # fmt: skip
        await self._storage.start()
        self.messages, self.queues = self._storage.messages, self._storage.queues
        if self._wired:
            self.messages = WiredStore(self._storage.messages)

    async def close(self) -> None:
        self.release()
        await self._storage.close()
        for disk in self._disks:
            await disk.close()

    def hold(self) -> None:
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    async def next_epoch(self) -> None:
        await self._storage.close()
        await self.start()


Story = Callable[[Subject], Awaitable[None]]
Tell = Callable[[Story], None]


class Linked(OnDisk):
    """The storage role of a node, as a broker of another node has it: over sockets, or over a simulated network."""

    def __init__(self, directory: Path, *, simulated: bool) -> None:
        super().__init__(directory, 64 << 20)
        self._network = SimulatedNetwork(7) if simulated else None
        self._identities = {node_id: Identity("c" * 22, node_id, bytes([node_id]) * 16) for node_id in (1, 2)}
        self._port = 0
        self._stack = AsyncExitStack()
        self._broker: RemoteMessageStore | None = None

    async def start(self) -> None:
        await super().start()
        storage, handlers = self._storage, Handlers()
        leadership = WriteGroupLeadership(1, storage.placement, storage.groups)
        lacks_memory = storage.write_loop.lacks_memory
        BrokerService(storage.messages, storage.queues, leadership, lacks_memory=lacks_memory).register(handlers)
        TailSessions(storage.messages, leadership).register(handlers)
        if self._broker is None:
            calls = await self._calls()
            placement = storage.placement
            leaders = self.leaders = LeaderCalls(calls, lambda group: (1, 1))
            self.group_of = placement.group_of
            self._broker = RemoteMessageStore(placement.groups, placement.group_of, leaders, random.Random(1))
            remote = RemoteQueueAdmin(placement.groups, placement.group_of, leaders)
            self._link = ClusterQueueAdmin(remote, 2, placement.groups, lambda group: 1, calls, LoopClock())
        await self._serve(handlers)
        ClusterQueueAdmin(storage.queues, 1, len(storage.groups), lambda group: 1, NoCalls(), LoopClock()).register(
            handlers
        )
        self.messages, self.queues = self._broker, self._link

    async def _calls(self) -> CallsWithBytes:
        if self._network is not None:
            return self._network.attach(self._identities[2])
        calls = NodeCalls(self._identities[2], moved=lambda addresses: None)
        self._stack.callback(calls.close)
        self._node_calls = calls
        return calls

    async def _serve(self, handlers: Handlers) -> None:
        if self._network is not None:
            self._network.attach(self._identities[1]).handlers = handlers
            return
        self._server = RpcServer(handlers, node=self._identities[1])
        _, self._port = await self._server.start("127.0.0.1", self._port)
        self._node_calls.know(1, f"127.0.0.1:{self._port}")

    async def _end(self) -> None:
        """The storage node is gone."""
        if self._network is not None:
            self._network.ends[1].close()
        else:
            await self._server.close()

    async def next_epoch(self) -> None:
        await self._end()
        await super().next_epoch()

    async def close(self) -> None:
        assert self._broker is not None
        await self._broker.close()
        await self._end()
        await self._stack.aclose()
        if self._network is not None:
            await self._network.close()
        await super().close()


class NoCalls:
    """The calls of a node that leads everything itself."""

    async def call(self, *arguments: object, **options: object) -> Reply[Any]:
        raise AssertionError("all is led here")


@pytest.fixture(params=["fake", "moving", "memory", "journal", "wired", "linked", "simulated"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Tell:
    async def told(story: Story) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            if request.param in ("fake", "moving"):
                subject: Subject = Fake() if request.param == "fake" else Moving()
                await subject.queues.create([QueueRange(TOPIC, 0, 2)])
                await story(subject)
                return
            if request.param in ("linked", "simulated"):
                real: OnDisk = Linked(tmp_path, simulated=request.param == "simulated")
            else:
                real = OnDisk(tmp_path, 0 if request.param == "journal" else 64 << 20, wired=request.param == "wired")
            await real.start()
            try:
                await real.queues.create([QueueRange(TOPIC, 0, 2)])
                await story(real)
            finally:
                await real.close()

    return lambda story: asyncio.run(told(story))


def stored(batch: BatchAppend, base_offset: int, leader_epoch: int) -> bytes:
    """As readers get it."""
    data = bytearray(batch.data)
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, 12, leader_epoch)
    return bytes(data)


def base_offsets(found: QueueSlice) -> list[int]:
    return [int.from_bytes(batch[:8], "big") for batch in found.batches]


class TestAppend:
    def test_offsets_have_no_gaps_and_batches_come_back_as_they_were_sent(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            sent = [new_batch(QUEUE, 50, records=count) for count in (3, 1, 2)]
            results = await subject.append(*sent)
            assert results == [AppendResult(Outcome.OK, base, -1, 0) for base in (0, 3, 4)]
            epoch = (await subject.offsets()).leader_epoch
            assert (await subject.offsets()) == QueueOffsets(0, 6, 6, epoch, 6)
            found = await subject.read(0)
            assert [bytes(batch) for batch in found.batches] == [
                stored(batch, base, epoch) for batch, base in zip(sent, (0, 3, 4), strict=True)
            ]
            assert (found.outcome, found.offsets, found.next_offset) == (Outcome.OK, (await subject.offsets()), 6)
            assert found.tier is not None
            other = await subject.offsets(OTHER)
            assert other == QueueOffsets(0, 0, 0, other.leader_epoch, 0)

        tell(story)

    def test_the_callers_memory_is_the_callers_again(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            batch = new_batch(QUEUE, 50)
            memory = bytearray(batch.data)
            appending = subject.messages.append([batch._replace(data=memoryview(memory))], -1)
            memory[:] = b"\xff" * len(memory)
            (result,) = await appending
            assert result.outcome is Outcome.OK
            assert [bytes(it) for it in (await subject.read(0)).batches] == [
                stored(batch, 0, (await subject.offsets()).leader_epoch)
            ]

        tell(story)

    def test_a_refused_batch_takes_no_other_along(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            results = await subject.append(new_batch(QUEUE), new_batch(NOBODY), new_batch(OTHER), new_batch(QUEUE))
            assert [(result.outcome, result.base_offset) for result in results] == [
                (Outcome.OK, 0), (Outcome.UNKNOWN_QUEUE, -1), (Outcome.OK, 0), (Outcome.OK, 1)]  # fmt: skip

        tell(story)

    def test_a_batch_may_be_stamped_with_the_time_it_came(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            (result,) = await subject.append(new_batch(QUEUE, timestamp=5)._replace(log_append_time=True))
            assert result.log_append_time_ms > 5
            (batch,) = (await subject.read(0)).batches
            data = bytes(batch)
            assert struct.unpack_from(">h", data, 21)[0] & 0x08
            assert struct.unpack_from(">q", data, 35) == (result.log_append_time_ms,)
            assert struct.unpack_from(">I", data, 17) == (google_crc32c.value(data[21:]),)

        tell(story)

    def test_a_producers_batches_are_taken_once_and_in_order(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            async def sent(epoch: int, sequence: int, records: int = 2) -> tuple[Outcome, int]:
                batch = new_batch(QUEUE, 50, producer=(7, epoch, sequence), records=records)
                (result,) = await subject.append(batch)
                return result.outcome, result.base_offset

            assert [await sent(3, sequence) for sequence in (0, 2, 4)] == [(Outcome.OK, at) for at in (0, 2, 4)]
            assert [await sent(3, sequence) for sequence in (4, 0, 2)] == [(Outcome.OK, at) for at in (4, 0, 2)]
            assert await sent(3, 8) == (Outcome.SKIPPED_SEQUENCE, -1)
            assert await sent(3, 6) == (Outcome.OK, 6)
            assert await sent(2, 8) == (Outcome.STALE_PRODUCER_EPOCH, -1)
            assert await sent(4, 0) == (Outcome.OK, 8), "a new epoch begins anew"
            assert await sent(3, 8) == (Outcome.STALE_PRODUCER_EPOCH, -1)
            assert await sent(4, 1) == (Outcome.OUT_OF_ORDER_SEQUENCE, -1), "half of it is there already"
            assert (await subject.offsets()).high_watermark == 10

        tell(story)

    def test_patience_with_what_was_skipped_ends(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.append(new_batch(QUEUE, producer=(7, 0, 0)))
            seen: list[Outcome] = []
            while not seen or seen[-1] is Outcome.SKIPPED_SEQUENCE:
                (result,) = await subject.append(new_batch(QUEUE, producer=(7, 0, 5)))
                seen.append(result.outcome)
                assert len(seen) < 1_000
            assert seen[-1] is Outcome.OUT_OF_ORDER_SEQUENCE
            assert len(seen) > 1

        tell(story)

    def test_what_is_not_committed_is_seen_by_nobody(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.fill(1)
            subject.hold()
            batch = new_batch(QUEUE, producer=(7, 0, 0))
            appending, again = (subject.messages.append([batch], -1) for _ in range(2))
            unasked = subject.messages.append([new_batch(QUEUE)], 0)
            assert unasked.done()
            assert unasked.result()[0].base_offset in (2, -1), "-1: a store elsewhere has not answered yet"
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not appending.done()
            assert not again.done(), "a duplicate is acknowledged with what it repeats"
            assert (await subject.offsets()) == QueueOffsets(0, 1, 3, (await subject.offsets()).leader_epoch, 1)
            assert base_offsets(await subject.read(0)) == [0]
            for offset in (1, 2, 3):
                found = await subject.read(offset)
                assert (found.outcome, found.batches, found.next_offset) == (Outcome.OK, [], offset)
            assert (await subject.read(4)).outcome is Outcome.OFFSET_OUT_OF_RANGE
            assert await subject.messages.offset_for_timestamp(QUEUE, 1001) is None
            subject.release()
            assert [(await it)[0].base_offset for it in (appending, again)] == [1, 1]
            await subject.fill(1)  # behind the one that nobody waited for
            assert base_offsets(await subject.read(0)) == [0, 1, 2, 3]

        tell(story)


class TestRead:
    def test_a_batch_is_found_by_any_of_its_offsets(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.append(*(new_batch(QUEUE, 20, records=3) for _ in range(4)))
            for offset in range(12):
                found = await subject.read(offset)
                assert base_offsets(found) == list(range(offset // 3 * 3, 12, 3))
                assert found.next_offset == 12

        tell(story)

    def test_the_ends(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.fill(3)
            at_end, beyond, before = [await subject.read(offset) for offset in (3, 4, -1)]
            assert at_end == QueueSlice(QUEUE, Outcome.OK, [], (await subject.offsets()), None, 3)
            assert beyond == before == QueueSlice(QUEUE, Outcome.OFFSET_OUT_OF_RANGE, [], (await subject.offsets()))
            assert await subject.read(0, NOBODY) == QueueSlice(NOBODY, Outcome.UNKNOWN_QUEUE, [], NO_OFFSETS)

        tell(story)

    def test_bytes_are_bounded_but_for_the_first_batch_of_all(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.fill(4)
            await subject.fill(4, OTHER)
            size = len((await subject.read(0)).batches[0])
            assert base_offsets(await subject.read(1, bytes_max=1)) == [1]
            assert base_offsets(await subject.read(1, bytes_max=1, whole_first=False)) == []
            assert base_offsets(await subject.read(0, bytes_max=2 * size)) == [0, 1]
            assert base_offsets(await subject.read(0, bytes_max=2 * size + 1, whole_first=False)) == [0, 1]
            reads = [QueueRead(QUEUE, 4, ROOM), QueueRead(OTHER, 0, ROOM), QueueRead(QUEUE, 0, ROOM)]
            slices = await subject.messages.read(reads, 1)
            assert [base_offsets(found) for found in slices] == [[], [0], []], "the first that has any"
            assert [found.next_offset for found in slices] == [4, 1, 0]
            slices = await subject.messages.read(reads, 3 * size)
            assert [base_offsets(found) for found in slices] == [[], [0, 1, 2], []]
            slices = await subject.messages.read(reads, 5 * size)
            assert [base_offsets(found) for found in slices] == [[], [0, 1, 2, 3], [0]]

        tell(story)

    def test_a_plan_is_settled_with_what_reads_find(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.fill(3)
            await subject.fill(2, OTHER)
            request = codec.write(asking(12, (TOPIC, [at(0, 1), at(1, 0), at(0, 9), at(7, 0)])), 12)
            plan = scan_fetch(memoryview(request), 0, 12).plan
            plan.begin(lambda key: kernel.PlannedTopic(number_of(key), 2), ROOM)
            subject.messages.read_at_once(plan)
            if not plan.settled:
                assert await subject.messages.read(plan, ROOM) == []
            assert plan.settled
            assert plan.ends() == {QUEUE: 3, OTHER: 2}
            frame = whole(plan)
            (topic,) = codec.read(FetchResponse, 12, frame, 9).responses
            assert topic.topic == key_of(12, TOPIC)["topic"]
            for part, expected in zip(
                topic.partitions, [await subject.read(1), await subject.read(0, OTHER)], strict=False
            ):
                assert records_of(part) == b"".join(expected.batches)
                assert (part.high_watermark, part.log_start_offset) == (
                    expected.offsets.high_watermark, expected.offsets.log_start)  # fmt: skip
            assert [bool(part.error_code) for part in topic.partitions] == [False, False, True, True]

        tell(story)

    def test_a_plan_of_many_queues_is_settled_in_their_order(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.queues.create([QueueRange(TOPIC, 0, MANY)])
            for partition in range(0, MANY, 40):
                await subject.fill(1, queue_id_of(TOPIC, partition))
            request = codec.write(asking(12, (TOPIC, [at(partition, 0) for partition in range(MANY)])), 12)
            plan = scan_fetch(memoryview(request), 0, 12).plan
            plan.begin(lambda key: kernel.PlannedTopic(number_of(key), MANY), ROOM)
            assert await subject.messages.read(plan, ROOM) == []
            assert plan.settled
            assert [bool(row.size) for row in plan.partitions()] == [row % 40 == 0 for row in range(MANY)]

        tell(story)

    def test_times(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            store = subject.messages
            for timestamp in (100, 300, 200):
                await subject.append(new_batch(QUEUE, 20, timestamp=timestamp, records=2))
            epoch = (await subject.offsets()).leader_epoch
            expected = {0: (0, 100), 100: (0, 100), 101: (2, 300), 250: (2, 300), 300: (2, 300)}
            for timestamp, found in expected.items():
                assert await store.offset_for_timestamp(QUEUE, timestamp) == TimestampOffset(*found, epoch)
            assert await store.offset_for_timestamp(QUEUE, 301) is None
            assert await store.offset_for_timestamp(QUEUE, MAX_TIMESTAMP) == TimestampOffset(2, 300, epoch)
            await subject.queues.truncate({QUEUE: 4})
            assert await store.offset_for_timestamp(QUEUE, 0) == TimestampOffset(4, 200, epoch)
            assert await store.offset_for_timestamp(QUEUE, MAX_TIMESTAMP) == TimestampOffset(4, 200, epoch)
            for queue_id in (OTHER, NOBODY):
                assert await store.offset_for_timestamp(queue_id, 0) is None
                assert await store.offset_for_timestamp(queue_id, MAX_TIMESTAMP) is None

        tell(story)


MOVES_MAX = 14
"""Each is waited for twice as long as the one before: two minutes in all."""


class TestWait:
    def test_it_ends_when_enough_has_been_committed(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.fill(1)
            waiting = subject.messages.wait({QUEUE: 1}, 300, PATIENCE_SECONDS)
            await subject.fill(3, OTHER, size=500)
            assert not waiting.done(), "that is not what is waited for"
            await subject.fill(1)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done(), "not enough"
            await subject.fill(1)
            await waiting

        tell(story)

    def test_it_is_over_at_once_where_there_is_nothing_to_wait_for(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.fill(2)
            wait = subject.messages.wait
            for further in ({QUEUE: 1}, {OTHER: 0, QUEUE: 1}, {NOBODY: 0}):
                async with asyncio.timeout(PATIENCE_SECONDS / 2):
                    await wait(further, 1 << 20, PATIENCE_SECONDS)
            assert wait({QUEUE: 2}, 1, 0).done(), "no time to wait"
            pending = wait({QUEUE: 2}, 1, PATIENCE_SECONDS)
            assert not pending.done()
            pending.cancel()

        tell(story)

    def test_it_ends_with_the_time(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.messages.wait({QUEUE: 0}, 1, 0.01)

        tell(story)

    def test_it_ends_with_the_queue(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            waiting = subject.messages.wait({QUEUE: 0}, 1, PATIENCE_SECONDS)
            await subject.queues.delete([TOPIC])
            await waiting

        tell(story)

    def test_it_ends_when_the_log_start_moves(self, tell: Tell) -> None:
        """A reader that waits at the end may not stand where there is something to read any more."""

        async def story(subject: Subject) -> None:
            await subject.fill(MOVES_MAX)
            waiting = subject.messages.wait({QUEUE: MOVES_MAX}, 1, PATIENCE_SECONDS)
            await subject.queues.truncate({QUEUE: 0})
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done(), "it has not moved"
            for start in range(1, MOVES_MAX + 1):  # a store elsewhere may not have been told yet that somebody waits
                await subject.queues.truncate({QUEUE: start})
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.01 * 2**start):
                        await asyncio.shield(settled(waiting))
                if waiting.done():
                    break
            assert waiting.done()

        tell(story)


async def settled(waiting: PromptFuture[None]) -> None:
    await waiting


class TestQueueAdmin:
    def test_queues_come_and_go(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            store, queues = subject.messages, subject.queues
            await subject.fill(2)
            await queues.create([QueueRange(TOPIC, 0, 3), QueueRange(2, 0, 2)])
            assert (await subject.offsets()).high_watermark == 2, "what is there is left alone"
            new = [queue_id_of(TOPIC, 2), queue_id_of(2, 0), queue_id_of(2, 1)]
            assert all(found is not None and found[:3] == (0, 0, 0) for found in (await store.offsets(new)))
            assert (await store.offsets([queue_id_of(2, 2), NOBODY])) == [None, None]
            await queues.delete([TOPIC, 77])
            assert (await store.offsets([QUEUE, OTHER, new[0]])) == [None, None, None]
            assert [found is not None for found in (await store.offsets(new[1:]))] == [True, True]
            assert (await subject.append(new_batch(QUEUE)))[0].outcome is Outcome.UNKNOWN_QUEUE
            assert (await subject.read(0)).outcome is Outcome.UNKNOWN_QUEUE
            await queues.create([])
            await queues.delete([])

        tell(story)

    def test_log_starts_move_forward_only(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.append(*(new_batch(QUEUE, 20, records=2) for _ in range(3)))
            queues = subject.queues
            assert await queues.truncate({QUEUE: 3, OTHER: -1, NOBODY: 0}) == {QUEUE: 3, OTHER: 0, NOBODY: None}
            assert (await subject.offsets())[:3] == (3, 6, 6)
            assert await queues.truncate({QUEUE: 7}) == {QUEUE: None}
            assert await queues.truncate({QUEUE: -2}) == {QUEUE: None}
            assert await queues.truncate({QUEUE: 1}) == {QUEUE: 3}
            assert (await subject.read(2)).outcome is Outcome.OFFSET_OUT_OF_RANGE
            assert base_offsets(await subject.read(3)) == [2, 4], "batches come whole"
            (result,) = await subject.append(new_batch(QUEUE))
            assert result == AppendResult(Outcome.OK, 6, -1, 3)
            assert await queues.truncate({QUEUE: -1}) == {QUEUE: 7}
            assert await subject.read(7) == QueueSlice(QUEUE, Outcome.OK, [], (await subject.offsets()), None, 7)

        tell(story)

    def test_epochs_end_where_the_next_begin(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            epochs = []
            for count in (3, 2, 1):
                await subject.fill(count)
                epochs.append((await subject.offsets()).leader_epoch)
                await subject.next_epoch()
            now = (await subject.offsets()).leader_epoch
            first, second, third = epochs
            assert first < second < third < now
            end = subject.queues.epoch_end
            assert [await end(QUEUE, epoch) for epoch in (first, second, third, now)] == [
                (first, 3), (second, 5), (third, 6), (now, 6)]  # fmt: skip
            assert await end(QUEUE, now + 1) == (-1, -1)
            assert await end(QUEUE, -1) == (-1, -1)
            assert await end(OTHER, first) == (first, 0), "no records at all"
            assert await end(NOBODY, first) is None
            await subject.queues.truncate({QUEUE: 4})
            assert await end(QUEUE, first) == (first, 4), "all that is left is younger"
            assert await end(QUEUE, second) == (second, 5)

        tell(story)

    def test_bytes_held_are_those_of_the_batches(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            await subject.fill(5, size=700)
            size = sum(len(batch) for batch in (await subject.read(0)).batches)
            used, empty, unknown = await subject.queues.usage([QUEUE, OTHER, NOBODY])
            assert used is not None
            assert sum(used) == size
            assert empty == (0, 0)
            assert unknown is None
            await subject.queues.truncate({QUEUE: -1})
            assert await subject.queues.usage([QUEUE, QUEUE]) == [(0, 0), (0, 0)]

        tell(story)


class TestOwners:
    """One writer of a queue at a time: `QueueAdmin.own`, and the owner epoch of appends."""

    def test_an_owner_appends_and_a_queue_without_one_takes_no_owners_batches(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            epoch = await subject.queues.own(QUEUE)
            for base_offset in range(3):
                (result,) = await subject.messages.append([new_batch(QUEUE)], -1, owner_epoch=epoch)
                assert (result.outcome, result.base_offset) == (Outcome.OK, base_offset)
            (result,) = await subject.messages.append([new_batch(OTHER)], -1, owner_epoch=epoch)
            assert result.outcome is Outcome.FENCED
            assert (await subject.append(new_batch(OTHER)))[0].outcome is Outcome.OK

        tell(story)

    def test_a_second_writers_append_is_refused_before_anything_of_it_lands(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            first = await subject.queues.own(QUEUE)
            await subject.messages.append([new_batch(QUEUE)], -1, owner_epoch=first)
            second = await subject.queues.own(QUEUE)
            assert second > first
            for intruder in (first, second + 1, None):
                batches = [new_batch(OTHER), new_batch(QUEUE), new_batch(QUEUE)]
                results = await subject.messages.append(batches, -1, owner_epoch=intruder)
                assert {result.outcome for result in results} == {Outcome.FENCED}
                assert (await subject.offsets()).end == 1
                assert (await subject.offsets(OTHER)).end == 0
            (result,) = await subject.messages.append([new_batch(QUEUE)], -1, owner_epoch=second)
            assert (result.outcome, result.base_offset) == (Outcome.OK, 1)

        tell(story)

    def test_what_an_owner_before_has_under_way_is_ahead_of_the_grant(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            first = await subject.queues.own(QUEUE)
            subject.hold()
            under_way = subject.messages.append([new_batch(QUEUE)], -1, owner_epoch=first)
            while (await subject.offsets()).end == 0:  # noqa: ASYNC110 - on its way to a store elsewhere
                await asyncio.sleep(0.001)
            second = await subject.queues.own(QUEUE)
            assert (await subject.offsets())[1:3] == (0, 1), "the new owner sees that something is under way"
            late = subject.messages.append([new_batch(QUEUE)], -1, owner_epoch=first)
            subject.release()
            assert [(await under_way)[0].outcome, (await late)[0].outcome] == [Outcome.OK, Outcome.FENCED]
            (result,) = await subject.messages.append([new_batch(QUEUE)], -1, owner_epoch=second)
            assert result.base_offset == 1

        tell(story)

    def test_a_new_leader_knows_no_owner_and_its_epochs_are_greater(self, tell: Tell) -> None:
        async def story(subject: Subject) -> None:
            before = await subject.queues.own(QUEUE)
            await subject.next_epoch()
            (result,) = await subject.messages.append([new_batch(QUEUE)], -1, owner_epoch=before)
            assert result.outcome is Outcome.FENCED
            assert await subject.queues.own(QUEUE) > before

        tell(story)
