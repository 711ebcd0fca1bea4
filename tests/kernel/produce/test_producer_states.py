"""Idempotent producers: duplicates, gaps and the patience with them, epochs, the overlay, what a checkpoint carries;
and that both kernels agree on all of it."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainstem.kernel import SEQUENCE_MODULUS, ProducerState, ProducerStates, SeenBatch, compiled, pure
from mainstem.kernel.errors import MalformedImage
from mainstem.kernel.pure.producer_states import PATIENCE, UNKNOWN_PATIENCE, place_of
from mainstem.model import Outcome

QUEUE = 1 << 32
ROW_BYTES = 152

both_kernels = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])


def answer_after_refusals(states: ProducerStates, *batch: int) -> tuple[int, Outcome]:
    """How often a batch is answered that it skipped sequence numbers, and what it is answered then."""
    for refused in range(2 * PATIENCE):
        outcome = states.check(*batch).outcome
        if outcome is not Outcome.SKIPPED_SEQUENCE:
            return refused, outcome
    raise AssertionError(f"{batch} was never answered anything else")


def append(states: ProducerStates, sequence: int, *, epoch: int = 0, count: int = 1, index: int = 1) -> None:
    states.appended(QUEUE, 7, epoch, sequence, count, sequence + 100, index, 0)


@both_kernels
def test_a_duplicate_names_its_first_offset_and_block(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    append(states, 0, count=3, index=4)
    verdict = states.check(QUEUE, 7, 0, 0, 3)
    assert verdict.outcome is Outcome.OK
    assert verdict.duplicate == SeenBatch(0, 2, 100, 4)


@both_kernels
def test_a_gap_is_refused_and_so_is_an_older_epoch(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    append(states, 0, epoch=1)
    for _round in range(2):
        assert answer_after_refusals(states, QUEUE, 7, 1, 2, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)
        assert states.check(QUEUE, 7, 0, 1, 1).outcome is Outcome.STALE_PRODUCER_EPOCH
        assert answer_after_refusals(states, QUEUE, 7, 2, 5, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)
        assert states.check(QUEUE, 7, 2, 0, 1).outcome is Outcome.OK


@both_kernels
def test_what_skipped_sequence_numbers_is_accepted_behind_what_was_missing(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    append(states, 0)
    for sequence in (2, 3, 2):
        assert states.check(QUEUE, 7, 0, sequence, 1) == (Outcome.SKIPPED_SEQUENCE, None)
    for sequence in (1, 2, 3):
        assert states.check(QUEUE, 7, 0, sequence, 1) == (Outcome.OK, None)
        append(states, sequence)
    assert answer_after_refusals(states, QUEUE, 7, 0, 5, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE), (
        "counted from the beginning, as it was in order meanwhile"
    )


@both_kernels
def test_a_higher_epochs_patience_begins_anew_with_sequence_0(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    append(states, 0)
    for _ in range(PATIENCE - 1):
        assert states.check(QUEUE, 7, 1, 1, 1).outcome is Outcome.SKIPPED_SEQUENCE
    assert states.check(QUEUE, 7, 1, 0, 1).outcome is Outcome.OK
    append(states, 0, epoch=1)
    assert answer_after_refusals(states, QUEUE, 7, 1, 2, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)


@both_kernels
def test_duplicates_and_what_lies_behind_do_not_count(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for sequence in range(7):
        append(states, sequence)
    for _ in range(PATIENCE):
        assert states.check(QUEUE, 7, 0, 8, 1).outcome is Outcome.SKIPPED_SEQUENCE
        assert states.check(QUEUE, 7, 0, 1, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE
        assert states.check(QUEUE, 7, 0, 6, 1).duplicate is not None
    assert states.check(QUEUE, 7, 0, 8, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE


@both_kernels
def test_an_unknown_producer_may_start_anywhere_after_one_volley(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    assert answer_after_refusals(states, QUEUE, 8, 0, 55, 1) == (UNKNOWN_PATIENCE, Outcome.OK)
    states.appended(QUEUE, 8, 0, 55, 1, 0, 1, 0)
    assert states.check(QUEUE, 8, 0, 56, 1).outcome is Outcome.OK


@both_kernels
def test_an_unknown_producers_second_batch_waits_for_its_first(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for _volley in range(3):
        for sequence in (1, 2, 3, 4):
            assert states.check(QUEUE, 7, 0, sequence, 1).outcome is Outcome.SKIPPED_SEQUENCE
        assert states.check(QUEUE, 7, 0, 0, 1).outcome is Outcome.OK  # its block was never committed
    append(states, 0)
    assert states.check(QUEUE, 7, 0, 1, 1).outcome is Outcome.OK


@both_kernels
def test_refusals_are_forgotten_with_the_overlay(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    states.applied(QUEUE, 7, 0, 0, 1, 0, 1, 0)
    for _ in range(PATIENCE):
        assert states.check(QUEUE, 7, 0, 2, 1).outcome is Outcome.SKIPPED_SEQUENCE
    for _ in range(UNKNOWN_PATIENCE):
        assert states.check(QUEUE, 8, 0, 2, 1).outcome is Outcome.SKIPPED_SEQUENCE
    states.discard_overlay()
    assert answer_after_refusals(states, QUEUE, 7, 0, 2, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)
    assert answer_after_refusals(states, QUEUE, 8, 0, 2, 1) == (UNKNOWN_PATIENCE, Outcome.OK)


@both_kernels
def test_refusals_are_in_no_checkpoint(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    states.applied(QUEUE, 7, 0, 0, 1, 0, 1, 0)
    before = states.image(), states.dump()
    assert states.check(QUEUE, 7, 0, 2, 1).outcome is Outcome.SKIPPED_SEQUENCE
    assert states.check(QUEUE, 8, 0, 2, 1).outcome is Outcome.SKIPPED_SEQUENCE
    assert (states.image(), states.dump()) == before


def sharing_with(producer_id: int) -> int:
    """Another producer whose refusals are counted at the same place."""
    place, mark = place_of(QUEUE, producer_id)
    others = ((place_of(QUEUE, other), other) for other in range(producer_id + 1, 1 << 16))
    return next(other for (its_place, its_mark), other in others if its_place == place and its_mark != mark)


@both_kernels
def test_who_shares_a_count_shares_its_patience(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    other = sharing_with(7)
    for turn in range(PATIENCE):
        producer_id = 7 if turn % 2 else other
        states.applied(QUEUE, producer_id, 0, 0, 1, 0, 1, 0)
        assert states.check(QUEUE, producer_id, 0, 2, 1).outcome is Outcome.SKIPPED_SEQUENCE
    assert states.check(QUEUE, other, 0, 2, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE
    assert answer_after_refusals(states, QUEUE, 7, 0, 2, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)


@both_kernels
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_who_shares_a_count_and_is_in_order_does_not_reset_it(kernel: ModuleType, known: bool) -> None:
    """Else a producer would never be heard beside a busy one."""
    states = kernel.ProducerStates()
    other = sharing_with(7)
    if known:
        append(states, 0)
    for sequence in range(PATIENCE if known else UNKNOWN_PATIENCE):
        assert states.check(QUEUE, 7, 0, 2, 1).outcome is Outcome.SKIPPED_SEQUENCE
        assert states.check(QUEUE, other, 0, sequence, 1).outcome is Outcome.OK
        states.appended(QUEUE, other, 0, sequence, 1, 0, 1, 0)
        assert states.check(QUEUE + 1, 7, 0, 0, 1).outcome is Outcome.OK, "another queue's, elsewhere"
    expected = Outcome.OUT_OF_ORDER_SEQUENCE if known else Outcome.OK
    assert states.check(QUEUE, 7, 0, 2, 1).outcome is expected


@both_kernels
def test_known_and_unknown_producers_are_counted_apart(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    append(states, 0)
    other = sharing_with(7)
    for _ in range(PATIENCE):
        assert states.check(QUEUE, 7, 0, 2, 1).outcome is Outcome.SKIPPED_SEQUENCE
    assert answer_after_refusals(states, QUEUE, other, 0, 2, 1) == (UNKNOWN_PATIENCE, Outcome.OK)
    assert states.check(QUEUE, 7, 0, 2, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE


@both_kernels
def test_what_is_ahead_and_what_is_behind_goes_round(kernel: ModuleType) -> None:
    half = SEQUENCE_MODULUS // 2
    for last in (SEQUENCE_MODULUS - 2, SEQUENCE_MODULUS - 1, 0, half - 1, half):
        states = kernel.ProducerStates()
        append(states, last)
        expected = (last + 1) % SEQUENCE_MODULUS
        for ahead in (1, 2, half - 1):
            batch = (QUEUE, 7, 0, (expected + ahead) % SEQUENCE_MODULUS, 1)
            assert answer_after_refusals(states, *batch) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)
        for behind in (2, 3, half):
            batch = (QUEUE, 7, 0, (expected - behind) % SEQUENCE_MODULUS, 1)
            assert answer_after_refusals(states, *batch) == (0, Outcome.OUT_OF_ORDER_SEQUENCE)
        assert states.check(QUEUE, 7, 0, expected, 1).outcome is Outcome.OK


@both_kernels
def test_sequences_wrap(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    append(states, SEQUENCE_MODULUS - 2, count=3)
    assert states.check(QUEUE, 7, 0, 1, 1).outcome is Outcome.OK
    assert states.check(QUEUE, 7, 0, 0, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE


@both_kernels
def test_only_the_last_five_batches_are_remembered(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for sequence in range(6):
        append(states, sequence)
    assert states.check(QUEUE, 7, 0, 0, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE
    assert states.check(QUEUE, 7, 0, 1, 1).duplicate is not None


@both_kernels
@given(appended=st.integers(1, 12), applied=st.integers(0, 12))
def test_a_checkpoint_carries_what_was_applied_and_nothing_else(
    kernel: ModuleType, appended: int, applied: int
) -> None:
    applied = min(appended, applied)
    states = kernel.ProducerStates()
    for index in range(1, appended + 1):
        append(states, index - 1, index=index)
    for index in range(1, applied + 1):
        states.applied(QUEUE, 7, 0, index - 1, 1, index + 99, index, 0)

    assert states.check(QUEUE, 7, 0, appended, 1).duplicate is None
    assert states.check(QUEUE, 7, 0, appended, 1).outcome is Outcome.OK
    restored = [kernel.ProducerStates(), kernel.ProducerStates()]
    restored[0].load(states.dump())
    restored[1].load_image(states.image())
    for copy in restored:
        assert copy.dump() == states.dump()
        assert copy.check(QUEUE, 7, 0, applied, 1).duplicate is None, "what a crash lost is no duplicate"
        assert copy.check(QUEUE, 7, 0, applied, 1).outcome is Outcome.OK
    states.discard_overlay()
    assert states.check(QUEUE, 7, 0, applied, 1).outcome is Outcome.OK


@both_kernels
def test_expiry_forgets_the_idle(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    states.applied(QUEUE, 7, 0, 0, 1, 0, 1, 1000)
    states.applied(QUEUE, 8, 0, 0, 1, 0, 1, 3000)
    assert states.expire(2000) == 1
    assert answer_after_refusals(states, QUEUE, 7, 0, 9, 1) == (UNKNOWN_PATIENCE, Outcome.OK)
    assert answer_after_refusals(states, QUEUE, 8, 0, 9, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)


@both_kernels
def test_expiry_passes_over_who_sent_a_batch_in_a_later_block(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for sequence in range(7):
        states.applied(QUEUE, 7, 0, sequence, 1, sequence, 10 + sequence, 1000)
    states.applied(QUEUE, 8, 0, 0, 1, 7, 17, 1000)
    assert states.expire(2000, up_to_index=15) == 0
    assert states.expire(1000, up_to_index=17) == 0
    assert states.expire(2000, up_to_index=16) == 1
    assert [producer_id for _queue, producer_id, _state in states.dump()] == [8]


@both_kernels
def test_expiry_in_steps_sees_everybody_in_turn(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    for producer_id in range(1000):
        states.applied(QUEUE, producer_id, 0, 0, 1, 0, 1, producer_id)
    gone = [states.expire(900, limit=100) for _step in range(10)]
    assert all(count <= 100 for count in gone)
    assert sum(gone) == 900
    assert states.expire(900, limit=100) == 0
    assert [producer_id for _queue, producer_id, _state in states.dump()] == list(range(900, 1000))


@both_kernels
def test_thousands_of_producers_come_and_go(kernel: ModuleType) -> None:
    """Enough for every table to grow, and for what is freed to be used again."""
    states = kernel.ProducerStates()
    for turn in range(3):
        for topic in (1, 2):
            for producer_id in range(4000):
                states.applied((topic << 32) + producer_id % 7, producer_id, 0, turn, 1, turn, turn, turn)
                states.appended((topic << 32) + producer_id % 7, producer_id, 0, turn + 1, 1, 9, turn + 1, turn)
        states.forget_topics([1])
        assert len(states) == 4000
    for producer_id in range(4000):
        queue_id = (2 << 32) + producer_id % 7
        assert states.check(queue_id, producer_id, 0, 3, 1).duplicate == SeenBatch(3, 3, 9, 3)
        gone = (queue_id - (1 << 32), producer_id, 0, 77, 1)
        assert answer_after_refusals(states, *gone) == (UNKNOWN_PATIENCE, Outcome.OK)
    states.discard_overlay()
    assert states.check(2 << 32, 0, 0, 2, 1).duplicate == SeenBatch(2, 2, 2, 2)
    assert states.expire(3) == 4000
    assert states.image() == b""


@both_kernels
def test_a_damaged_image_is_refused_whole(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    states.applied(QUEUE, 7, 3, 0, 1, 0, 1, 1000)
    image = states.image()
    assert len(image) == ROW_BYTES
    copy = kernel.ProducerStates()
    with pytest.raises(MalformedImage, match="151 bytes are not a number of rows of 152"):
        copy.load_image(image[:-1])
    damaged = bytearray(image + image)
    damaged[ROW_BYTES + 26] = 6
    with pytest.raises(MalformedImage, match="row 1 has 6 batches"):
        copy.load_image(bytes(damaged))
    assert len(copy) == 0


rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(-(1 << 15), (1 << 15) - 1),
        st.integers(0, 6),
        st.binary(min_size=125, max_size=125),
    ),
    max_size=6,
)


@given(rows, st.integers(0, 3))
def test_both_kernels_make_the_same_of_any_image(rows: list[Any], missing: int) -> None:
    image = b"".join(
        struct.pack("<QqqhB", queue_id << 62, producer_id - 2, timestamp, epoch, count) + rest
        for queue_id, producer_id, timestamp, epoch, count, rest in rows
    )
    image = image[: len(image) - missing]
    answers: list[Any] = []
    for kernel in (pure, compiled):
        states = kernel.ProducerStates()
        try:
            states.load_image(image)
        except MalformedImage as error:
            answers.append(str(error))
        else:
            answers.append((states.dump(), states.image(), len(states)))
            again = kernel.ProducerStates()
            again.load(states.dump())
            assert again.image() == states.image()
    assert answers[0] == answers[1]


@both_kernels
def test_a_dump_with_more_batches_than_are_remembered_is_cut(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    batches = tuple(SeenBatch(number, number, number, number) for number in range(7))
    states.load([(QUEUE, 7, ProducerState(2, batches, 5)), (QUEUE, 8, ProducerState(2, (), 5))])
    assert states.dump() == [
        (QUEUE, 7, ProducerState(2, batches[-5:], 5)),
        (QUEUE, 8, ProducerState(2, (), 5)),
    ]
    assert states.check(QUEUE, 8, 2, 0, 1).outcome is Outcome.OK
    assert answer_after_refusals(states, QUEUE, 8, 2, 1, 1) == (PATIENCE, Outcome.OUT_OF_ORDER_SEQUENCE)


@both_kernels
def test_a_marker_of_a_newer_epoch_begins_the_sequences_anew(kernel: ModuleType) -> None:
    states = kernel.ProducerStates()
    append(states, 0, count=3)
    states.appended(QUEUE, 7, 0, -1, 1, 3, 2, 0)
    assert states.check(QUEUE, 7, 0, 3, 1).outcome is Outcome.OK
    states.appended(QUEUE, 7, 1, -1, 1, 4, 3, 0)
    assert states.epoch_of(QUEUE, 7) == 1
    assert states.check(QUEUE, 7, 0, 3, 1).outcome is Outcome.STALE_PRODUCER_EPOCH
    assert states.check(QUEUE, 7, 1, 3, 1).outcome is Outcome.SKIPPED_SEQUENCE
    assert states.check(QUEUE, 7, 1, 0, 1).outcome is Outcome.OK
    states.discard_overlay()
    assert states.epoch_of(QUEUE, 7) == -1
    states.applied(QUEUE, 7, 0, 0, 3, 0, 1, 5)
    states.applied(QUEUE, 7, 0, -1, 1, 3, 2, 6)
    ((_, _, known),) = states.dump()
    assert (known.batches, known.last_timestamp_ms) == ((SeenBatch(0, 2, 0, 1),), 6)
    states.applied(QUEUE, 7, 1, -1, 1, 4, 3, 7)
    states.load_image(states.image())
    assert states.check(QUEUE, 7, 1, 0, 1).outcome is Outcome.OK
    assert states.check(QUEUE, 7, 0, 3, 1).outcome is Outcome.STALE_PRODUCER_EPOCH


queue_ids = st.sampled_from([QUEUE, QUEUE + 1, 2 << 32, (1 << 63) + 5, 5 - (1 << 63), (1 << 64) - 1, -1])
producer_ids = st.sampled_from([0, 1, 2, sharing_with(1), (1 << 63) - 1])
epochs = st.sampled_from([0, 0, 0, 1, 2, (1 << 15) - 1])
sequences = st.one_of(
    st.integers(0, 8),
    st.sampled_from([-1, SEQUENCE_MODULUS // 2, SEQUENCE_MODULUS // 2 + 1, SEQUENCE_MODULUS - 2, SEQUENCE_MODULUS - 1]),
)
times = st.sampled_from([1, 1, 2, UNKNOWN_PATIENCE, UNKNOWN_PATIENCE + 1, PATIENCE - 1, PATIENCE, PATIENCE + 1])
counts = st.one_of(st.integers(1, 4), st.just(SEQUENCE_MODULUS - 1))


class Twins(RuleBasedStateMachine):
    """The same calls on both: the same verdicts, and the same bytes for a checkpoint."""

    @initialize()
    def start(self) -> None:
        self.pure, self.compiled = pure.ProducerStates(), compiled.ProducerStates()
        self.index = 0

    def both(self, name: str, *arguments: Any, **named: Any) -> Any:
        answers = [getattr(states, name)(*arguments, **named) for states in (self.pure, self.compiled)]
        assert answers[0] == answers[1], (name, arguments)
        return answers[0]

    @rule(queue_id=queue_ids, producer_id=producer_ids, epoch=epochs, sequence=sequences, count=counts, times=times)
    def check(self, queue_id: int, producer_id: int, epoch: int, sequence: int, count: int, times: int) -> None:
        """Often enough for patience to run out."""
        for _ in range(times):
            self.both("check", queue_id, producer_id, epoch, sequence, count)

    @rule(place=st.integers(1, 300), times=st.integers(1, 3))
    def check_many(self, place: int, times: int) -> None:
        """Producers beyond number, unknown: at some places several are counted."""
        for number in range(place * 40, place * 40 + 40):
            for _ in range(times):
                self.both("check", QUEUE + number % 7, number, 0, 1, 1)

    @rule(queue_id=queue_ids, producer_id=producer_ids, epoch=epochs, sequence=sequences, count=counts)
    def append(self, queue_id: int, producer_id: int, epoch: int, sequence: int, count: int) -> None:
        self.index += 1
        arguments = (queue_id, producer_id, epoch, sequence, count, self.index * 10, self.index, self.index)
        self.both("appended", *arguments)
        again = self.both("check", queue_id, producer_id, epoch, sequence, count)
        assert sequence < 0 or again.duplicate is not None  # a marker is no batch
        assert self.both("epoch_of", queue_id, producer_id) >= epoch or sequence < 0

    @rule(
        queue_id=queue_ids,
        producer_id=producer_ids,
        epoch=epochs,
        sequence=sequences,
        count=counts,
        behind=st.integers(0, 5),
    )
    def apply(self, queue_id: int, producer_id: int, epoch: int, sequence: int, count: int, behind: int) -> None:
        index = self.index - behind
        self.both("applied", queue_id, producer_id, epoch, sequence, count, index * 10, index, index)

    @rule(queue_id=queue_ids, producer_id=producer_ids, epoch=epochs, start=sequences, batches=st.integers(1, 8))
    def go_on(self, queue_id: int, producer_id: int, epoch: int, start: int, batches: int) -> None:
        """A producer that sends in sequence, and retries each batch."""
        for sequence in range(start, start + batches):
            self.append(queue_id, producer_id, epoch, sequence % SEQUENCE_MODULUS, 1)
        for sequence in range(start, start + batches):
            self.both("check", queue_id, producer_id, epoch, sequence % SEQUENCE_MODULUS, 1)

    @rule()
    def discard(self) -> None:
        self.both("discard_overlay")

    @rule(topic_numbers=st.lists(st.sampled_from([1, 2, 1 << 31, (1 << 32) - 1, 9]), max_size=3))
    def forget(self, topic_numbers: list[int]) -> None:
        self.both("forget_topics", topic_numbers)

    @rule(behind=st.integers(0, 12), blocks_behind=st.integers(0, 12))
    def expire(self, behind: int, blocks_behind: int) -> None:
        self.both("expire", self.index - behind, 1 << 14, self.index - blocks_behind)

    @rule(behind=st.integers(0, 12), limit=st.integers(1, 4))
    def expire_in_steps(self, behind: int, limit: int) -> None:
        """The order is each one's own; what is gone after a round is not."""
        before_ms = self.index - behind
        rounds = 2 * 30 // limit + 2  # there are at most 30 producers, and states of as many more
        gone = [
            sum(states.expire(before_ms, limit=limit) for _round in range(rounds))
            for states in (self.pure, self.compiled)
        ]
        assert gone[0] == gone[1]

    @rule(by_image=st.booleans(), crossed=st.booleans())
    def restart(self, by_image: bool, crossed: bool) -> None:
        """From a checkpoint, of its own or of the other kernel."""
        sources = (self.compiled, self.pure) if crossed else (self.pure, self.compiled)
        self.pure, self.compiled = pure.ProducerStates(), compiled.ProducerStates()
        for source, target in zip(sources, (self.pure, self.compiled), strict=True):
            if by_image:
                target.load_image(source.image())
            else:
                target.load(source.dump())

    @invariant()
    def same(self) -> None:
        if hasattr(self, "pure"):
            self.both("__len__")
            self.both("dump")
            self.both("image")


TestTwins = Twins.TestCase
