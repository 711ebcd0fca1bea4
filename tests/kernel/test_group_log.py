"""The append and apply of both kernels, side by side: same batches in, same offsets, blocks, rows and states out."""

from __future__ import annotations

import random
import struct
from array import array
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainstem.kernel.compiled as compiled
import mainstem.kernel.pure as pure
from mainstem.kernel.layout import CELLS, COMMITTED_END, ENTRIES, NEXT_OFFSET, ROW_BYTES, WATCHED, Verdict
from mainstem.kernel.pure.group_log import VERDICT_OF_OUTCOME
from mainstem.kernel.pure.producer_states import PATIENCE
from mainstem.model import SLOTS_OF_ALL, AppendResult, BatchAppend, Outcome, queue_id_of, slot_of

GROUPS = 3
PARTITIONS = 5
TOPIC = 7
CHUNK_BYTES = 600

both = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])


@dataclass
class Block:
    index: int
    builder: Any


@dataclass
class Node:
    """The groups of one node, without a disk: what is closed is applied when the story says so."""

    kernel: ModuleType
    block_bytes_max: int = 1500
    chunk_bytes: int = CHUNK_BYTES
    blocks: list[list[Block]] = field(default_factory=lambda: [[] for _ in range(GROUPS)])

    def __post_init__(self) -> None:
        kernel = self.kernel
        self.table = kernel.QueueTable()
        self.table.create(TOPIC, 0, PARTITIONS)
        self.producers = [kernel.ProducerStates() for _ in range(GROUPS)]
        self.arenas = [kernel.Arena(self.chunk_bytes) for _ in range(GROUPS)]
        self.logs = [
            kernel.WriteGroupLog(
                group,
                self.table,
                self.producers[group],
                self.opener(group),
                block_bytes_max=self.block_bytes_max,
                batch_bytes_max=900,
            )
            for group in range(GROUPS)
        ]
        for log in self.logs:
            log.term = 4
        self.applied = [0] * GROUPS
        self.slots = memoryview(array("H", [number % GROUPS for number in range(SLOTS_OF_ALL)]))

    def opener(self, group: int) -> Any:
        def open_block() -> Block:
            block = Block(len(self.blocks[group]) + 1, self.kernel.BlockBuilder(self.arenas[group]))
            self.blocks[group].append(block)
            return block

        return open_block

    def append(self, batches: Any, led: list[bool], now_ms: int) -> tuple[Any, Any]:
        """Of a list of batches their results, of a scan the scan itself; and the blocks to wait for."""
        logs = [log if leads else None for log, leads in zip(self.logs, led, strict=True)]
        results, waiting = self.kernel.append_all(batches, logs, self.slots, now_ms)
        return results, waiting

    def apply(self, group: int) -> list[list[tuple[int, int]]]:
        """Close what is open and apply all of it."""
        log, watched = self.logs[group], []
        log.close()
        for block in self.blocks[group][self.applied[group] :]:
            watched.append(log.apply(block.builder.directory, block.index, 1000 + block.index))
            log.applied_bytes(block.builder.payload_bytes)
        self.applied[group] = len(self.blocks[group])
        return watched

    def state(self) -> Any:
        """Everything that can be told apart from outside."""
        slots = [self.table.find(queue_id_of(TOPIC, partition)) for partition in range(PARTITIONS)]
        return (
            [[self.table.get(slot, cell) for cell in range(CELLS)] for slot in slots],
            [
                [(block.index, bytes(block.builder.payload), bytes(block.builder.directory)) for block in blocks]
                for blocks in self.blocks
            ],
            [sorted(producers.dump()) for producers in self.producers],
            [(log.appended_bytes, log.appended_batches, log.pending_bytes, log.applied_index) for log in self.logs],
        )


def batch_of(size: int, records: int, **fields: int) -> bytes:
    producer = fields["producer_id"], fields["producer_epoch"], fields["base_sequence"]
    body = struct.pack(">hiqqqhii", 0, records - 1, 5, 9, *producer, records) + bytes(size - 61)
    return struct.pack(">qiibI", 0, size - 12, -1, 2, pure.crc32c(body)) + body


def append_of(
    partition: int, size: int, records: int, producer: int, epoch: int, sequence: int, log_append_time: bool
) -> BatchAppend:
    if producer < 0:
        epoch = sequence = -1
    data = batch_of(size, records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    (crc,) = struct.unpack_from(">I", data, 17)
    queue_id = queue_id_of(TOPIC, partition)
    return BatchAppend(
        queue_id, memoryview(data), records, records - 1, 9, producer, epoch, sequence, 0, crc, log_append_time
    )


batches = st.builds(
    append_of,
    st.integers(0, PARTITIONS),  # the last one does not exist
    st.integers(61, 1000),
    st.integers(1, 3),
    st.integers(-1, 1),
    st.integers(0, 1),
    st.integers(0, 4),
    st.booleans(),
)
requests = st.tuples(st.lists(batches, max_size=6), st.lists(st.booleans(), min_size=GROUPS, max_size=GROUPS))
steps = st.one_of(requests, st.integers(0, GROUPS - 1), st.tuples(st.integers(0, PARTITIONS - 1)))


@given(st.lists(steps, max_size=30))
def test_both_do_the_same(story: list[Any]) -> None:
    nodes = Node(pure), Node(compiled)
    for now_ms, step in enumerate(story):
        if isinstance(step, int):
            assert nodes[0].apply(step) == nodes[1].apply(step)
        elif len(step) == 1:
            for node in nodes:
                slot = node.table.find(queue_id_of(TOPIC, step[0]))
                node.table.set(slot, ENTRIES, node.table.get(slot, ENTRIES) ^ WATCHED)
        else:
            sent, leads = step
            assert nodes[0].append(sent, leads, now_ms) == nodes[1].append(sent, leads, now_ms)
        assert nodes[0].state() == nodes[1].state()


def scan_of(kernel: ModuleType, sent: list[tuple[BatchAppend, int]], log_append_time: bool) -> Any:
    """A request with these batches; in each the byte that is named is turned, but for the header's."""
    name = b"there"
    body = struct.pack(">hhiih", -1, -1, 1000, 1, len(name)) + name + struct.pack(">i", len(sent))
    for batch, damaged in sent:
        data = bytearray(batch.data)
        if damaged > 61:
            data[damaged % len(data)] ^= 1 + damaged % 255
        body += struct.pack(">ii", batch.queue_id & 0xFFFFFFFF, len(data)) + data
    topic = kernel.ProduceTopic(
        number=TOPIC, partitions=PARTITIONS + 1, message_bytes_max=1 << 20, log_append_time=log_append_time
    )
    return kernel.scan_produce(memoryview(body), 0, 7, lambda key: topic)


scanned_requests = st.tuples(
    st.lists(st.tuples(batches, st.integers(0, 600)), max_size=12),
    st.booleans(),
    st.lists(st.booleans(), min_size=GROUPS, max_size=GROUPS),
    st.booleans(),
)
ERRORS = [(number, b"message %d" % number) for number in range(64)]


@pytest.mark.parametrize("seed", range(5))
def test_long_requests_of_batches_that_skip_sequence_numbers(seed: int) -> None:
    """Until patience runs out: of two producers in five queues, known and unknown."""
    rng = random.Random(seed)
    nodes = [Node(kernel, block_bytes_max=40_000, chunk_bytes=90_000) for kernel in (pure, compiled)]
    outcomes: set[int] = set()
    for now_ms in range(6):
        sent = []
        for _ in range(600):
            sequence = rng.randrange(20, 24) if rng.random() < 0.95 else rng.randrange(4)
            batch = append_of(rng.randrange(PARTITIONS), 80, 1, rng.randrange(2), 0, sequence, False)
            sent.append((batch, 0))
        found = []
        for node in nodes:
            scan = scan_of(node.kernel, sent, log_append_time=False)
            results, waiting = node.append(scan, [True] * GROUPS, now_ms)
            if results is not scan:
                scan.settle(results)
            found.append((waiting, scan.scanned(), scan.response(3, ERRORS)))
            scan.release()
        assert found[0] == found[1]
        assert nodes[0].state() == nodes[1].state()
        outcomes |= {batch.verdict for batch in found[0][1]}
    assert outcomes == {Verdict.OK, Verdict.SKIPPED_SEQUENCE, Verdict.OUT_OF_ORDER_SEQUENCE}


@given(st.lists(st.one_of(scanned_requests, st.integers(0, GROUPS - 1)), max_size=15))
def test_checksums_are_right_whoever_looks_at_them_first(story: list[Any]) -> None:
    nodes = Node(pure), Node(compiled), Node(compiled)
    for now_ms, step in enumerate(story):
        if isinstance(step, int):
            assert nodes[0].apply(step) == nodes[1].apply(step) == nodes[2].apply(step)
            continue
        sent, log_append_time, led, released_first = step
        found = []
        for number, node in enumerate(nodes):
            scan = scan_of(node.kernel, sent, log_append_time)
            if number < 2:  # and in the third node `append_all` is the first
                assert len(scan) <= scan.accepted_count_max <= len(sent)
            results, waiting = node.append(scan, led, now_ms)
            if results is not scan:
                scan.settle(results)
            if released_first:
                scan.release()
            found.append((waiting, scan.scanned(), scan.accepted_count, scan.response(3, ERRORS)))
            scan.release()
        assert found[0] == found[1] == found[2]
        assert nodes[0].state() == nodes[1].state() == nodes[2].state()


@pytest.mark.parametrize("seed", range(20))
def test_long_requests_of_mostly_plain_batches(seed: int) -> None:
    """Long runs for one group and for several, and what ends them; blocks of some hundred rows, then of a few."""
    rng = random.Random(seed)
    nodes = [Node(kernel, block_bytes_max=40_000, chunk_bytes=90_000) for kernel in (pure, compiled)]
    partitions = rng.choices(range(PARTITIONS), k=rng.choice([1, 2, PARTITIONS]))
    for now_ms in range(8):
        sent = []
        for _ in range(rng.choice([1, 7, 9, 40, 400])):
            partition = PARTITIONS if rng.random() < 0.02 else rng.choice(partitions)
            producer, sequence = (rng.randrange(2), rng.randrange(3)) if rng.random() < 0.03 else (-1, -1)
            size = 950 if rng.random() < 0.01 else rng.randrange(61, 200)
            batch = append_of(partition, size, rng.randrange(1, 4), producer, 0, sequence, False)
            sent.append((batch, rng.randrange(62, 600) if rng.random() < 0.02 else 0))
        led = [rng.random() < 0.9 for _ in range(GROUPS)]
        found = []
        for node in nodes:
            scan = scan_of(node.kernel, sent, log_append_time=False)
            results, waiting = node.append(scan, led, now_ms)
            if results is not scan:
                scan.settle(results)
            found.append((waiting, scan.scanned(), scan.accepted_count, scan.response(3, ERRORS)))
            scan.release()
        assert found[0] == found[1]
        assert nodes[0].state() == nodes[1].state()
        if rng.random() < 0.5:
            group = rng.randrange(GROUPS)
            assert nodes[0].apply(group) == nodes[1].apply(group)


@both
def test_a_wrong_checksum_leaves_nothing_in_the_block(kernel: ModuleType) -> None:
    node = Node(kernel)
    good, late = append_of(0, 100, 1, -1, -1, -1, False), append_of(0, 120, 2, -1, -1, -1, False)
    scan = scan_of(kernel, [(good, 0), (good, 99), (late, 0)], False)
    assert scan.accepted_count_max >= 2
    results, waiting = node.append(scan, [True] * GROUPS, 5)
    if results is not scan:
        scan.settle(results)
    assert [batch.verdict for batch in scan.scanned()] == [Verdict.OK, Verdict.BAD_CHECKSUM, Verdict.OK]
    assert [batch.base_offset for batch in scan.scanned()] == [0, -1, 1]
    assert scan.accepted_count_max == scan.accepted_count == 2
    (group,) = {group for group, _ in waiting}
    assert len(node.blocks[group][0].builder.payload) == 100 + 120
    assert node.logs[group].appended_batches == 2


@both
def test_results_of_each_kind(kernel: ModuleType) -> None:
    node = Node(kernel)
    led = [True] * GROUPS

    def append(*arguments: Any) -> AppendResult:
        results: list[AppendResult] = node.append([append_of(*arguments)], led, 50)[0]
        (result,) = results
        return result

    assert append(0, 100, 3, -1, -1, -1, False) == AppendResult(Outcome.OK, 0, -1, 0)
    assert append(0, 100, 1, -1, -1, -1, True) == AppendResult(Outcome.OK, 3, 50, 0)
    assert append(PARTITIONS, 100, 1, -1, -1, -1, False).outcome is Outcome.UNKNOWN_QUEUE
    assert append(0, 950, 1, -1, -1, -1, False).outcome is Outcome.TOO_LARGE
    assert append(1, 100, 2, 9, 3, 0, False).base_offset == 0
    assert append(1, 100, 2, 9, 3, 0, False).base_offset == 0, "a repeated batch has the offset it got"
    for _ in range(PATIENCE):
        assert append(1, 100, 2, 9, 3, 7, False) == AppendResult(Outcome.SKIPPED_SEQUENCE)
    assert append(1, 100, 2, 9, 3, 7, False) == AppendResult(Outcome.OUT_OF_ORDER_SEQUENCE)
    assert append(1, 100, 2, 9, 2, 2, False).outcome is Outcome.STALE_PRODUCER_EPOCH
    led[slot_of(queue_id_of(TOPIC, 0)) % GROUPS] = False
    assert append(0, 100, 1, -1, -1, -1, False).outcome is Outcome.NOT_LEADER


@both
@pytest.mark.parametrize("scanned", [False, True], ids=["batches", "scan"])
def test_what_skipped_sequence_numbers_leaves_nothing_behind_until_it_is_in_order(
    kernel: ModuleType, scanned: bool
) -> None:
    """The producer is unknown: without its first batch the others are not let in, in whatever order they come."""
    node = Node(kernel)
    first, second, third = (append_of(2, 100, 1, 9, 0, sequence, False) for sequence in range(3))

    def append(*sent: BatchAppend) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(verdict, base offset) of each, and the blocks to wait for."""
        if not scanned:
            results, waiting = node.append(list(sent), [True] * GROUPS, 5)
            return [(VERDICT_OF_OUTCOME[result.outcome], result.base_offset) for result in results], waiting
        scan = scan_of(kernel, [(batch, 0) for batch in sent], log_append_time=False)
        results, waiting = node.append(scan, [True] * GROUPS, 5)
        if results is not scan:
            scan.settle(results)
        scan.release()
        return [(batch.verdict, batch.base_offset) for batch in scan.scanned()], waiting

    skipped = (Verdict.SKIPPED_SEQUENCE, -1)
    assert append(second, third) == ([skipped, skipped], [])
    assert not any(node.blocks)
    found, (block,) = append(third, first, third, second, third)
    assert found == [skipped, (Verdict.OK, 0), skipped, (Verdict.OK, 1), (Verdict.OK, 2)]
    (opened,) = node.blocks[block[0]]
    assert opened.builder.batch_count == 3


@both
def test_a_repeated_batch_waits_for_the_block_of_the_first_which_may_be_applied_already(kernel: ModuleType) -> None:
    node = Node(kernel)
    group = slot_of(queue_id_of(TOPIC, 2)) % GROUPS
    batch = append_of(2, 100, 1, 9, 0, 0, False)
    assert node.append([batch], [True] * GROUPS, 1)[1] == [(group, 1)]
    assert node.append([batch, batch], [True] * GROUPS, 2)[1] == [(group, 1)]
    node.apply(group)
    assert node.append([batch], [True] * GROUPS, 3) == ([AppendResult(Outcome.OK, 0, -1, 0)], [(group, 1)])


@both
def test_the_end_of_a_queue_does_not_go_down(kernel: ModuleType) -> None:
    """A snapshot of the write group to which the queue has gone on may be here before the last blocks of this one."""
    node = Node(kernel)
    group, slot = slot_of(queue_id_of(TOPIC, 2)) % GROUPS, node.table.find(queue_id_of(TOPIC, 2))
    node.append([append_of(2, 100, 1, 9, 0, 0, False)], [True] * GROUPS, 1)
    for cell in (COMMITTED_END, NEXT_OFFSET):
        node.table.set(slot, cell, 40)
    node.apply(group)
    assert [node.table.get(slot, cell) for cell in (COMMITTED_END, NEXT_OFFSET)] == [40, 40]


@both
def test_a_directory_that_is_looked_at_does_not_grow(kernel: ModuleType) -> None:
    builder = kernel.BlockBuilder()
    batch = append_of(0, 100, 1, -1, -1, -1, False)
    builder.add(batch, 0, 1)
    directory = builder.directory
    assert directory.nbytes == ROW_BYTES
    with pytest.raises(BufferError):
        builder.add(batch, 1, 1)
    directory.release()
    builder.add(batch, 1, 1)
    assert builder.batch_count == 2


@both
def test_what_is_no_batch_or_does_not_fit_is_refused(kernel: ModuleType) -> None:
    builder = kernel.BlockBuilder(kernel.Arena(150))
    batch = append_of(0, 100, 1, -1, -1, -1, False)
    builder.add(batch, 0, 1)
    before = bytes(builder.payload), bytes(builder.directory)
    for refused, reason in ((batch._replace(data=batch.data[:60]), "no batch"), (batch, "another chunk")):
        with pytest.raises(ValueError, match=reason):
            builder.add(refused, 1, 1)
    assert (bytes(builder.payload), bytes(builder.directory)) == before


@both
def test_slots_of_a_group_that_is_not_there(kernel: ModuleType) -> None:
    node = Node(kernel)
    slots = memoryview(array("H", [GROUPS] * SLOTS_OF_ALL))
    with pytest.raises(IndexError):
        kernel.append_all([append_of(0, 100, 1, -1, -1, -1, False)], node.logs, slots, 0)
    name, data = b"there", append_of(0, 100, 1, -1, -1, -1, False).data
    body = struct.pack(">hhiih", -1, -1, 1000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(data)) + data
    topic = kernel.ProduceTopic(number=TOPIC, partitions=PARTITIONS, message_bytes_max=1 << 20)
    scan = kernel.scan_produce(memoryview(body), 0, 7, lambda key: topic)
    assert scan.accepted_count == 1
    with pytest.raises(IndexError):
        kernel.append_all(scan, node.logs, slots, 0)
    scan.release()
