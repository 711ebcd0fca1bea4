"""Bugs of share groups to plant, by `cluster.planted`, each found by a message of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.simulation.cluster.planted import Plant

from mainstem.broker.machines.result import Moment, Result
from mainstem.broker.share_groups.lock_deadlines import LockDeadlines
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.served_states import ServedStates
from mainstem.broker.share_groups.share_partition import RecordState, SharePartition
from mainstem.broker.share_groups.window_log import WindowLog
from mainstem.model import Topic
from mainstem.protocol.messages.share_state_records import ShareStateBatch


def _lock_lost_at_failover() -> tuple[type, str, Any]:
    """A window that is loaded knows no locks; so it takes whoever acknowledges an available record for its holder."""

    def holds(window: SharePartition, member_id: str, first: int, last: int) -> bool:
        if first < window.start or last >= window.end:
            return first >= window.start
        return all(
            run.state is RecordState.AVAILABLE or run.member_id == member_id
            for run in window._overlapping(first, last)
            if not run.state.is_final
        )

    return SharePartition, "holds", holds


def _delivered_to_two_at_once() -> tuple[type, str, Any]:
    """A window gives out records that members have."""
    acquire = SharePartition.acquire

    def for_all(window: SharePartition, *arguments: Any) -> Any:
        for run in window.runs:
            if run.state is RecordState.ACQUIRED:
                run.state = RecordState.AVAILABLE
        return acquire(window, *arguments)

    return SharePartition, "acquire", for_all


def _acknowledgement_forgotten_at_failover() -> tuple[type, str, Any]:
    """A window that is loaded begins at its start, with nothing done behind that."""
    recovered = WindowLog.recovered

    def forgetful(log: WindowLog, now: Moment) -> Result:
        for window in log.windows.values():
            for run in window.runs:
                if run.state is RecordState.ACKNOWLEDGED:
                    run.state = RecordState.AVAILABLE
        return recovered(log, now)

    return WindowLog, "recovered", forgetful


def _delivery_count_lost() -> tuple[type, str, Any]:
    """A window that is loaded has given nothing out yet."""
    recovered = WindowLog.recovered

    def uncounted(log: WindowLog, now: Moment) -> Result:
        for window in log.windows.values():
            for run in window.runs:
                run.deliveries = 0
        return recovered(log, now)

    return WindowLog, "recovered", uncounted


def _start_past_an_available_record() -> tuple[type, str, Any]:
    """The window begins behind what was acknowledged last, whatever is before that."""

    def start_after(window: SharePartition, batches: Sequence[ShareStateBatch]) -> int:
        done = [batch.last_offset + 1 for batch in batches if RecordState(batch.delivery_state).is_final]
        return max([window.start, *done])

    return SharePartition, "start_after", start_after


def _delivered_without_end() -> tuple[type, str, Any]:
    """However often a record was given out, it is available when it was given back."""
    given_back = SharePartition.given_back

    def available(window: SharePartition, first: int, last: int, _deliveries_max: int) -> list[ShareStateBatch]:
        return given_back(window, first, last, 1 << 14)

    return SharePartition, "given_back", available


def _renewal_forgotten() -> tuple[type, str, Any]:
    """A renewal is answered, and the lock runs out when it did before."""

    def renew(window: SharePartition, first: int, last: int, lock_ends_ms: int) -> None:
        """Later."""

    return SharePartition, "renew", renew


def _lock_never_runs_out() -> tuple[type, str, Any]:
    """Nobody looks when the locks of silent members run out."""

    def due(deadlines: LockDeadlines, now_ms: int) -> Iterator[WindowKey]:
        return iter(())

    return LockDeadlines, "due", due


def _window_not_looked_for() -> tuple[type, str, Any]:
    """A window is taken to be beside its queue, wherever that has moved."""

    def has_moved(states: ServedStates, topic: Topic, queue_id: int, key: WindowKey) -> bool:
        return False

    return ServedStates, "_has_moved", has_moved


SHARE_MOVE_PLANTS: dict[str, Plant] = {"window-not-looked-for": _window_not_looked_for}
"""Shown by queues that move between write groups."""

SHARE_PLANTS: dict[str, Plant] = {
    "share-lock-lost-at-failover": _lock_lost_at_failover,
    "delivered-to-two-at-once": _delivered_to_two_at_once,
    "acknowledgement-forgotten-at-failover": _acknowledgement_forgotten_at_failover,
    "delivery-count-lost": _delivery_count_lost,
    "start-past-an-available-record": _start_past_an_available_record,
    "delivered-without-end": _delivered_without_end,
    "renewal-forgotten": _renewal_forgotten,
    "lock-never-runs-out": _lock_never_runs_out,
}

SHARE_BREAKS = dict.fromkeys(SHARE_PLANTS, "Q")
"""As `cluster.planted.BREAKS`."""

SHARE_FOUND_BY = {
    "share-lock-lost-at-failover": "its lock was lost at a failover",
    "delivered-to-two-at-once": "is delivered to two at once",
    "acknowledgement-forgotten-at-failover": "an acknowledgement is forgotten",
    "delivery-count-lost": "a delivery count is lost",
    "start-past-an-available-record": "past offset",
    "delivered-without-end": "the limit is",
    "renewal-forgotten": "which ran still",
    "lock-never-runs-out": "nobody gets it any more",
}
"""Per planted bug what the message that finds it says."""
