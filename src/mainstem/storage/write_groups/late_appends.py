"""Holds copies of batches whose producers' state lay on disk when they arrived, or whose transaction was not known
here, and appends them once the state is read and the coordinator asked.

The rest of their request is appended at once. The results of late batches go to the places where they would have been,
so the request's caller sees no difference but the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstem.kernel import ProduceScan, Verdict, WriteGroupLog
from mainstem.model import AppendResult, BatchAppend, Outcome, slot_of


class LateAppends:
    """The batches of one append that are appended later."""

    def __init__(self, results: list[AppendResult] | ProduceScan, batches: list[tuple[int, BatchAppend]]) -> None:
        """`results` are those that the kernel returned; a scan stands for its own. `batches` are copies, by their
        number among all batches of the append."""
        self._results = results
        self._batches = batches

    @classmethod
    def of_cold(cls, batches: Sequence[BatchAppend], results: list[AppendResult]) -> LateAppends:
        """Those whose producers are cold."""
        if isinstance(results, ProduceScan):
            return cls(results, results.late(Verdict.COLD_PRODUCER))
        cold = [
            (number, batch._replace(data=memoryview(bytes(batch.data))))
            for number, (batch, result) in enumerate(zip(batches, results, strict=True))
            if result.outcome is Outcome.COLD_PRODUCER
        ]
        return cls(results, cold)

    @property
    def ownable(self) -> list[BatchAppend]:
        """The batches that may be for queues with owners: none of a scan is."""
        scanned = isinstance(self._results, ProduceScan)
        return [] if scanned else [batch for _number, batch in self._batches]

    def append(
        self,
        logs: Sequence[WriteGroupLog | None],
        slots: Sequence[int],
        now_ms: int,
        refused: Mapping[tuple[int, int, int], Outcome],
        refusal: Outcome | None,
    ) -> list[tuple[int, int]]:
        """Append the batches, except those of producers in `refused` (write group, queue id, producer id); with a
        `refusal`, append none. Those that turn out to have to wait once more stay. Returns the blocks to wait for, as
        (write group, index), each once."""
        waiting: dict[tuple[int, int], None] = {}
        still_late: list[tuple[int, BatchAppend]] = []
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
            if result.outcome is Outcome.COLD_PRODUCER:
                still_late.append((number, batch))
        self._batches = still_late
        return list(waiting)

    def give_up(self, outcome: Outcome) -> None:
        """Answer the batches that are still late, which are not appended."""
        for number, _batch in self._batches:
            self._settle(number, AppendResult(outcome), 0, 0)
        self._batches = []

    def _settle(self, number: int, result: AppendResult, group: int, index: int) -> None:
        if isinstance(self._results, ProduceScan):
            self._results.resettle(number, result, group, index)
        else:
            self._results[number] = result
