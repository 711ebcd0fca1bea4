"""Producers that have gone from memory: whatever is in files and whatever is not, both kernels answer as if all of them
were in memory; and what they hand out to be written is what there is."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainstem.kernel import ProducerStates, ProduceScan, Verdict, compiled, pure
from mainstem.kernel.errors import MalformedImage
from mainstem.kernel.pure.producer_states import COLD_FILES_MAX, KEY, PARTIAL_AT, ROW
from mainstem.model import SLOTS_OF_ALL, AppendResult, Outcome

QUEUE = 1 << 32
LIMIT = 1000

both_kernels = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])


def rows_of(image: bytes) -> list[bytes]:
    return [image[at : at + ROW.size] for at in range(0, len(image), ROW.size)]


def flushed(states: ProducerStates) -> list[bytes]:
    """The rows that a file would be written from, sorted."""
    rows: list[bytes] = []
    piece = states.changed(True, 3)
    while piece is not None:
        rows += rows_of(piece)
        piece = states.changed(False, 3)
    return sorted(rows, key=lambda row: KEY.unpack_from(row))


def names_of(rows: list[bytes]) -> bytes:
    return b"".join(row[: KEY.size] for row in rows)


def evict_all(states: ProducerStates) -> None:
    for _ in range(3):
        states.evict(0, LIMIT)


@both_kernels
def test_who_has_gone_is_cold_until_it_is_read(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for sequence in range(3):
        states.applied(QUEUE, 7, 0, sequence, 1, 100 + sequence, 1 + sequence, 50)
    rows = flushed(states)
    assert flushed(states) == [], "it has not changed since"
    states.set_cold([names_of(rows)])
    evict_all(states)
    assert len(states) == 0
    assert states.is_cold(QUEUE, 7)
    assert not states.is_cold(QUEUE, 8)
    for epoch, sequence in ((0, 2), (0, 3), (0, 9), (1, 0), (-1, 0)):
        assert states.check(QUEUE, 7, epoch, sequence, 1).outcome is Outcome.COLD_PRODUCER
    assert states.check(QUEUE, 8, 0, 0, 1).outcome is Outcome.OK
    states.warm(QUEUE, 7, rows[0])
    assert states.check(QUEUE, 7, 0, 2, 1).duplicate == (2, 2, 102, 3)
    assert states.check(QUEUE, 7, 0, 3, 1) == (Outcome.OK, None)
    assert flushed(states) == [], "it is in a file as it is here"


@both_kernels
def test_what_is_applied_without_its_past_is_put_together_with_it(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for sequence in range(4):
        states.applied(QUEUE, 7, 0, sequence, 1, 100 + sequence, 1 + sequence, 50)
    first = flushed(states)
    states.set_cold([names_of(first)])
    evict_all(states)
    for sequence in (4, 5):
        states.applied(QUEUE, 7, 0, sequence, 1, 100 + sequence, 1 + sequence, 60)
    assert states.check(QUEUE, 7, 0, 5, 1).outcome is Outcome.COLD_PRODUCER
    second = flushed(states)
    assert [first[0][PARTIAL_AT], second[0][PARTIAL_AT]] == [0, 1]
    states.warm(QUEUE, 7, first[0] + second[0])
    assert [states.check(QUEUE, 7, 0, sequence, 1).duplicate is not None for sequence in range(6)] == [
        False, True, True, True, True, True,
    ]  # fmt: skip
    states.set_cold([names_of(first), names_of(second)])
    evict_all(states)
    evict_all(states)
    assert len(states) == 0
    states.warm(QUEUE, 7, first[0] + second[0])
    assert states.check(QUEUE, 7, 0, 1, 1).duplicate == (1, 1, 101, 2)


@both_kernels
def test_who_came_back_stays_and_who_was_invented_goes(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for producer_id in range(20):
        for sequence in range(2):
            states.applied(QUEUE, producer_id, 0, sequence, 1, 1000 * sequence + producer_id, 1, 0)
    for producer_id in range(1000, 1200):
        states.applied(QUEUE + 1, producer_id, 0, 0, 1, producer_id, 1, 0)
    states.set_cold([names_of(flushed(states))])
    states.evict(20, LIMIT)
    assert [producer_id for _queue, producer_id, _state in states.dump()] == list(range(20))


@both_kernels
def test_a_batch_that_is_applied_again_changes_nothing(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for sequence in range(4):
        states.applied(QUEUE, 7, 0, sequence, 1, 100 + sequence, 1 + sequence, 50)
    before = states.image()
    for sequence in range(4):
        states.applied(QUEUE, 7, 0, sequence, 1, 100 + sequence, 1 + sequence, 50)
    assert states.image() == before


@both_kernels
def test_unknown_producers_are_refused_for_now_while_there_are_too_many(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    states.count_max = 3
    for producer_id in range(2):
        states.applied(QUEUE, producer_id, 0, 0, 1, producer_id, 1, 0)
    states.appended(QUEUE, 2, 0, 0, 1, 2, 2, 0)
    assert states.check(QUEUE, 3, 0, 0, 1).outcome is Outcome.STORAGE_BUSY
    assert states.check(QUEUE, 2, 0, 1, 1).outcome is Outcome.OK
    states.discard_overlay()
    assert states.check(QUEUE, 3, 0, 0, 1).outcome is Outcome.OK


@both_kernels
def test_what_came_to_nothing_is_handed_out_again(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for producer_id in range(9):
        states.applied(QUEUE, producer_id, 0, 0, 1, producer_id, 1, 0)
    rows = flushed(states)
    states.all_changed()
    assert flushed(states) == rows


@both_kernels
def test_what_no_file_can_have_is_refused(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    with pytest.raises(ValueError, match="33 files of producers"):
        states.set_cold([b""] * (COLD_FILES_MAX + 1))
    with pytest.raises(MalformedImage, match="10 bytes are not a number of rows"):
        states.warm(QUEUE, 7, bytes(10))
    row = bytearray(ROW.size)
    row[26] = 6
    with pytest.raises(MalformedImage, match="row 0 has 6 batches"):
        states.warm(QUEUE, 7, bytes(row))
    assert len(states) == 0


def scan_of(kernel: ModuleType, batches: list[tuple[int, int]]) -> ProduceScan:
    """A request of (partition, producer id)."""
    parts = [struct.pack(">hhiihs", -1, -1, 1000, 1, 1, b"t"), struct.pack(">i", len(batches))]
    for partition, producer_id in batches:
        rest = struct.pack(">hiqqqhii", 0, 0, 1, 1, producer_id, 0, 0, 1) + b"x" * 20
        data = struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, compiled.crc32c(rest)) + rest
        parts += [struct.pack(">ii", partition, len(data)), data]
    topic = kernel.ProduceTopic(number=1, partitions=9, message_bytes_max=1000)
    scan: ProduceScan = kernel.scan_produce(memoryview(b"".join(parts)), 0, 7, lambda key: topic)
    return scan


@both_kernels
def test_the_cold_ones_of_a_request_are_told_apart_and_settled_later(kernel: ModuleType) -> None:
    table = kernel.QueueTable()
    table.create(1, 0, 9)
    states = kernel.ProducerStates()
    opened: list[Any] = []

    class Open:
        index = 4

        def __init__(self) -> None:
            self.builder = kernel.BlockBuilder(kernel.Arena())
            opened.append(self)

    log = kernel.WriteGroupLog(0, table, states, Open, block_bytes_max=1 << 20, batch_bytes_max=1 << 20)
    states.applied(QUEUE + 2, 7, 0, 0, 1, 11, 1, 0)
    rows = flushed(states)
    states.set_cold([names_of(rows)])
    evict_all(states)
    scan = scan_of(kernel, [(1, 7), (2, 7), (3, 9)])
    slots = memoryview(bytearray(2 * SLOTS_OF_ALL)).cast("H")
    _results, waiting = kernel.append_all(scan, [log], slots, 5)
    assert states.asked == [(0, QUEUE + 2, 7)]
    assert waiting == [(0, 4)]
    cold = scan.late(Verdict.COLD_PRODUCER)
    data = bytes(scan[1].data)
    scan.release()
    assert [(number, batch.queue_id, batch.producer_id, bytes(batch.data)) for number, batch in cold] == [
        (1, QUEUE + 2, 7, data)
    ]
    with pytest.raises(ValueError, match="is the last one"):
        scan.late(Verdict.OK)
    scan.fail(Verdict.UNDECIDED, 0, 4)
    with pytest.raises(IndexError, match="no late batch 0"):
        scan.resettle(0, AppendResult(Outcome.OK), 3, 4)
    scan.resettle(1, AppendResult(Outcome.OK, 11, -1, 0), 3, 8)
    with pytest.raises(IndexError, match="no late batch 1"):
        scan.resettle(1, AppendResult(Outcome.OK), 3, 4)
    assert [(batch.verdict, batch.base_offset, batch.group, batch.block_index) for batch in scan.scanned()] == [
        (Verdict.UNDECIDED, -1, 0, 4),
        (Verdict.OK, 11, 3, 8),
        (Verdict.UNDECIDED, -1, 0, 4),
    ]


@both_kernels
def test_rows_of_named_producers_are_handed_out_as_they_are_here(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for sequence in range(7):
        states.applied((1 << 63) + 5, 7, 0, sequence, 1, 100 + sequence, 1 + sequence, 50)
    rows = flushed(states)
    states.set_cold([names_of(rows) + KEY.pack((1 << 63) + 5, 8)])
    states.applied((1 << 63) + 5, 8, 1, 0, 1, 300, 9, 60)
    states.appended(QUEUE, 9, 0, 0, 1, 0, 10, 70)
    names = [KEY.pack((1 << 63) + 5, number) for number in (8, 6, 7)] + [KEY.pack(QUEUE, 9)]
    partial, whole = rows_of(states.held(b"".join(names)))
    assert whole == rows[0]
    assert (KEY.unpack_from(partial), partial[PARTIAL_AT]) == (((1 << 63) + 5, 8), 1)
    assert states.held(b"") == b""
    assert flushed(states)[0] == partial, "it is to be written still"
    with pytest.raises(MalformedImage, match="17 bytes are not a number of names of 16"):
        states.held(bytes(17))


queue_ids = st.sampled_from([QUEUE, QUEUE + 1, (1 << 63) + 5])
producer_ids = st.sampled_from([0, 1, 2, (1 << 63) - 1])


class WithFiles(RuleBasedStateMachine):
    """Both kernels with files beside them, and one that has all in memory."""

    @initialize()
    def start(self) -> None:
        self.states = [pure.ProducerStates(), compiled.ProducerStates()]
        self.reference = pure.ProducerStates()
        self.files: list[list[dict[bytes, bytes]]] = [[], []]
        self.offset = 0

    def settled(self, number: int, queue_id: int, producer_id: int, epoch: int, sequence: int) -> Any:
        """The outcome of a batch once all that there is has been read."""
        states = self.states[number]
        verdict = states.check(queue_id, producer_id, epoch, sequence, 1)
        if verdict.outcome is not Outcome.COLD_PRODUCER:
            return verdict
        key = KEY.pack(queue_id, producer_id)
        states.warm(queue_id, producer_id, b"".join(file[key] for file in self.files[number] if key in file))
        states.settled = True
        try:
            return states.check(queue_id, producer_id, epoch, sequence, 1)
        finally:
            states.settled = False

    @rule(queue_id=queue_ids, producer_id=producer_ids, epoch=st.integers(0, 2), sequence=st.integers(0, 8))
    def check(self, queue_id: int, producer_id: int, epoch: int, sequence: int) -> None:
        self.judge(queue_id, producer_id, epoch, sequence)

    def judge(self, queue_id: int, producer_id: int, epoch: int, sequence: int) -> Any:
        """The verdict of all of them on a batch, once they have read all that there is."""
        wanted = self.reference.check(queue_id, producer_id, epoch, sequence, 1)
        for number in range(2):
            assert self.settled(number, queue_id, producer_id, epoch, sequence) == wanted, number
        return wanted

    @rule(
        queue_id=queue_ids,
        producer_id=producer_ids,
        epoch=st.integers(0, 2),
        start=st.integers(0, 4),
        count=st.integers(1, 7),
        kept=st.integers(0, 7),
    )
    def send(self, queue_id: int, producer_id: int, epoch: int, start: int, count: int, kept: int) -> None:
        """Some batches are appended, and those that are `kept` applied; the others are lost with the overlay."""
        sent = []
        for sequence in range(start, start + count):
            if self.judge(queue_id, producer_id, epoch, sequence) != (Outcome.OK, None):
                continue
            self.offset += 1
            sent.append((queue_id, producer_id, epoch, sequence, 1, self.offset, self.offset, self.offset))
            for states in (*self.states, self.reference):
                states.appended(*sent[-1])
        for states in (*self.states, self.reference):
            for batch in sent[:kept]:
                states.applied(*batch)
            states.discard_overlay()

    @rule(queue_id=queue_ids, producer_id=producer_ids, epoch=st.integers(0, 2), sequence=st.integers(0, 8))
    def follow(self, queue_id: int, producer_id: int, epoch: int, sequence: int) -> None:
        """A block of another leader is applied, unchecked."""
        self.offset += 1
        for states in (*self.states, self.reference):
            states.applied(queue_id, producer_id, epoch, sequence, 1, self.offset, self.offset, self.offset)

    @rule(twice=st.booleans())
    def flush(self, twice: bool) -> None:
        for states, files in zip(self.states, self.files, strict=True):
            rows = flushed(states)
            if rows:
                files.append({row[: KEY.size]: row for row in rows})
            states.set_cold([b"".join(file) for file in files][-COLD_FILES_MAX:])
            assert len(files) <= COLD_FILES_MAX or not files.pop(0)

    @rule()
    def evict(self) -> None:
        for states in self.states:
            evict_all(states)
        assert len(self.states[0]) == len(self.states[1])

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "reference"):
            for number, states in enumerate(self.states):
                known = {row[: KEY.size] for row in rows_of(states.image())}
                image = states.image()
                held = [
                    row[:PARTIAL_AT] + bytes(1) + row[PARTIAL_AT + 1 :]
                    for row in rows_of(states.held(names_of(rows_of(image))))
                ]
                assert held == rows_of(image)
                known |= {key for file in self.files[number] for key in file}
                assert known == {row[: KEY.size] for row in rows_of(self.reference.image())}


TestWithFiles = WithFiles.TestCase
