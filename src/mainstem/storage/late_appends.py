"""Batches whose producers lay on disk when they came: copies of them, appended once it is known what they follow.

The rest of their request is appended at once. What became of these is written where it would have been, so that whoever
made the request sees no difference but the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem.kernel import GroupLog, ProduceScan
from mainstem.model import AppendResult, BatchAppend, Outcome, slot_of


class LateAppends:
    """The cold ones among the batches of one append."""

    def __init__(self, batches: Sequence[BatchAppend], results: list[AppendResult]) -> None:
        """`results`: as the kernel gave them, a scan standing for its own."""
        self._results = results
        self._batches: list[tuple[int, BatchAppend]]
        """By their number among all."""
        if isinstance(results, ProduceScan):
            self._batches = results.cold()
        else:
            self._batches = [
                (number, batch._replace(data=memoryview(bytes(batch.data))))
                for number, (batch, result) in enumerate(zip(batches, results, strict=True))
                if result.outcome is Outcome.COLD_PRODUCER
            ]

    def append(
        self,
        logs: Sequence[GroupLog | None],
        slots: Sequence[int],
        now_ms: int,
        refused: Mapping[tuple[int, int, int], Outcome],
        refusal: Outcome | None,
    ) -> list[tuple[int, int]]:
        """Append them, but those of producers that are `refused`, by (write group, queue id, producer id), and none
        where there is a `refusal` of everything. Returns the blocks to wait for, as (write group, index), each once."""
        waiting: dict[tuple[int, int], None] = {}
        for number, batch in self._batches:
            group = slots[slot_of(batch.queue_id)]
            log = logs[group]
            outcome = refusal or refused.get((group, batch.queue_id, batch.producer_id))
            index = 0
            if log is None:
                result = AppendResult(Outcome.NOT_LEADER)
            elif outcome is not None:
                result = AppendResult(outcome)
            else:
                result, index = log.append(batch, now_ms)
            self._settle(number, result, group, index)
            if index:
                waiting[group, index] = None
        return list(waiting)

    def _settle(self, number: int, result: AppendResult, group: int, index: int) -> None:
        if isinstance(self._results, ProduceScan):
            self._results.resettle(number, result, group, index)
        else:
            self._results[number] = result
