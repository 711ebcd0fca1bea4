"""Idempotent producers: duplicates, gaps, epochs, the overlay, and what a checkpoint carries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.kernel import SEQUENCE_MODULUS, ProducerStates
from mainstem.model import Outcome

QUEUE = 1 << 32


def append(states: ProducerStates, sequence: int, *, epoch: int = 0, count: int = 1, index: int = 1) -> None:
    states.appended(QUEUE, 7, epoch, sequence, count, sequence + 100, index, 0)


def test_a_duplicate_names_its_first_offset_and_block() -> None:
    states = ProducerStates()
    append(states, 0, count=3, index=4)
    verdict = states.check(QUEUE, 7, 0, 0, 3)
    assert verdict.duplicate is not None
    assert (verdict.duplicate.base_offset, verdict.duplicate.block_index) == (100, 4)


def test_a_gap_is_refused_and_so_is_an_older_epoch() -> None:
    states = ProducerStates()
    append(states, 0, epoch=1)
    assert states.check(QUEUE, 7, 1, 2, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE
    assert states.check(QUEUE, 7, 0, 1, 1).outcome is Outcome.STALE_PRODUCER_EPOCH
    assert states.check(QUEUE, 7, 2, 5, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE
    assert states.check(QUEUE, 7, 2, 0, 1).outcome is Outcome.OK
    assert states.check(QUEUE, 8, 0, 55, 1).outcome is Outcome.OK, "an unknown producer may start anywhere"


def test_sequences_wrap() -> None:
    states = ProducerStates()
    append(states, SEQUENCE_MODULUS - 2, count=3)
    assert states.check(QUEUE, 7, 0, 1, 1).outcome is Outcome.OK
    assert states.check(QUEUE, 7, 0, 0, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE


def test_only_the_last_five_batches_are_remembered() -> None:
    states = ProducerStates()
    for sequence in range(6):
        append(states, sequence)
    assert states.check(QUEUE, 7, 0, 0, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE
    assert states.check(QUEUE, 7, 0, 1, 1).duplicate is not None


@given(st.integers(1, 12), st.integers(0, 12))
def test_a_checkpoint_carries_what_was_applied_and_nothing_else(appended: int, applied: int) -> None:
    applied = min(appended, applied)
    states = ProducerStates()
    for index in range(1, appended + 1):
        append(states, index - 1, index=index)
    for index in range(1, applied + 1):
        states.applied(QUEUE, 7, 0, index - 1, 1, index + 99, index, 0)

    assert states.check(QUEUE, 7, 0, appended, 1).duplicate is None
    assert states.check(QUEUE, 7, 0, appended, 1).outcome is Outcome.OK
    restored = ProducerStates()
    restored.load(states.dump())
    assert restored.check(QUEUE, 7, 0, applied, 1).duplicate is None, "what a crash lost is no duplicate"
    assert restored.check(QUEUE, 7, 0, applied, 1).outcome is Outcome.OK
    states.discard_overlay()
    assert states.check(QUEUE, 7, 0, applied, 1).outcome is Outcome.OK


def test_expiry_forgets_the_idle() -> None:
    states = ProducerStates()
    states.applied(QUEUE, 7, 0, 0, 1, 0, 1, 1000)
    states.applied(QUEUE, 8, 0, 0, 1, 0, 1, 3000)
    assert states.expire(2000) == 1
    assert states.check(QUEUE, 7, 0, 9, 1).outcome is Outcome.OK
    assert states.check(QUEUE, 8, 0, 9, 1).outcome is Outcome.OUT_OF_ORDER_SEQUENCE
