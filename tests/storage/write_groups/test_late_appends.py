"""Batches whose producers had to be read: appended as they came, by whoever may take them by then."""

from __future__ import annotations

from typing import Any

import pytest
from tests.storage.small_node import QUEUE, new_batch

from mainstem.model import SLOTS, AppendResult, BatchAppend, Outcome
from mainstem.storage.write_groups.late_appends import LateAppends

COLD = AppendResult(Outcome.COLD_PRODUCER)
TAKEN = AppendResult(Outcome.OK, base_offset=7)
SLOTS_OF_ONE = [0] * SLOTS
KEY = (0, QUEUE, 3)


class Log:
    """A write group that is led here, and takes everything into block 5."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def append(self, batch: BatchAppend, now_ms: int) -> tuple[AppendResult, int]:
        self.taken.append(bytes(batch.data))
        return TAKEN, 5


@pytest.mark.parametrize(
    ("leads", "refused", "refusal", "outcome"),
    [
        (True, {}, None, Outcome.OK),
        (False, {}, None, Outcome.NOT_LEADER),
        (False, {}, Outcome.STORAGE_BUSY, Outcome.NOT_LEADER),
        (True, {}, Outcome.STORAGE_BUSY, Outcome.STORAGE_BUSY),
        (True, {KEY: Outcome.UNKNOWN_PRODUCER}, None, Outcome.UNKNOWN_PRODUCER),
        (True, {(0, QUEUE, 4): Outcome.UNKNOWN_PRODUCER}, None, Outcome.OK),
        (True, {KEY: Outcome.UNKNOWN_PRODUCER}, Outcome.STORAGE_FAILED, Outcome.STORAGE_FAILED),
    ],
)
def test_who_leads_goes_before_how_the_node_is_and_that_before_the_producer(
    leads: bool, refused: dict[tuple[int, int, int], Outcome], refusal: Outcome | None, outcome: Outcome
) -> None:
    known = AppendResult(Outcome.OK, base_offset=1)
    results, log = [known, COLD], Log()
    batches = [new_batch(QUEUE), new_batch(QUEUE, producer=(3, 0, 0))]
    logs: Any = [log if leads else None]
    waiting = LateAppends.of_cold(batches, results).append(logs, SLOTS_OF_ONE, 1, refused, refusal)
    assert results[0] is known
    assert results[1].outcome is outcome
    taken = outcome is Outcome.OK
    assert log.taken == ([bytes(batches[1].data)] if taken else [])
    assert waiting == ([(0, 5)] if taken else [])


def test_they_are_copies_for_the_connection_reads_on_into_its_buffer() -> None:
    batch = new_batch(QUEUE, producer=(3, 0, 0))
    buffer = bytearray(batch.data)
    late, log = LateAppends.of_cold([batch._replace(data=memoryview(buffer))], [COLD]), Log()
    buffer[:] = bytes(len(buffer))
    logs: Any = [log]
    late.append(logs, SLOTS_OF_ONE, 1, {}, None)
    assert log.taken == [bytes(batch.data)]
