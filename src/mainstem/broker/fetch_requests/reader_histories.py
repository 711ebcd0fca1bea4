"""Compares what readers have read with what their queues have, where requests name the leader epoch of the last record.

A reader whose history is not the queue's (a leader that it read from has lost records) is told where it left it, and
truncates what it has. Readers that know another leader epoch than the node, and queues that are gone or led elsewhere,
are left to the read.

Most readers are in the epoch that goes on, at an offset that is committed: memory tells that their history is the
queue's, as an epoch's one leader has one record per offset. Offsets of a moment ago are enough for that. All others
ask for the end of their epoch, which a broker without storage gets from the queue's leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from mainstem.broker.broker import Broker
from mainstem.errors import MainstemError
from mainstem.kernel import EpochCheck, FetchPlan
from mainstem.model import QueueOffsets

EPOCHS_PER_TURN = 200
"""Epochs compared within one turn of the event loop: a millisecond."""


def go_on(broker: Broker, plan: FetchPlan) -> bool:
    """Whether memory tells of all readers of a plan that their histories are those of their queues. False where they
    are too many for one turn."""
    checks = plan.epoch_checks(most=EPOCHS_PER_TURN)
    if len(checks) >= EPOCHS_PER_TURN:
        return False
    led = [check for check in checks if broker.leadership.serves_here(check.queue_id)]
    known = broker.store.offsets([check.queue_id for check in led], lately=True)
    if not known.done():
        known.cancel()
        return False
    return not any(map(_leaves_open, led, known.result()))


async def compare(
    broker: Broker, plan: FetchPlan, turn: Callable[[], Awaitable[None]], check_round: Callable[[], None]
) -> None:
    """Settle the partitions whose readers have left their queues' histories. `turn` takes a turn of the event loop;
    `check_round` raises when another round of the plan has begun."""
    checks = plan.epoch_checks(most=EPOCHS_PER_TURN)
    while checks:
        await _compare(broker, plan, checks, check_round)
        if len(checks) < EPOCHS_PER_TURN:
            break
        await turn()
        checks = plan.epoch_checks(checks[-1].row, EPOCHS_PER_TURN)


async def _compare(
    broker: Broker, plan: FetchPlan, checks: Sequence[EpochCheck], check_round: Callable[[], None]
) -> None:
    for check in checks:
        if not broker.leadership.serves_here(check.queue_id):
            continue
        (offsets,) = await broker.store.offsets([check.queue_id], lately=True)
        if not _leaves_open(check, offsets):
            continue
        try:
            end = await broker.queue_admin.epoch_end(check.queue_id, check.last_fetched_epoch)
        except (MainstemError, OSError):  # the storage has logged what and where
            check_round()
            plan.fail(check.row)
            continue
        check_round()
        if end is not None and (end[0] != check.last_fetched_epoch or end[1] < check.fetch_offset):
            plan.diverge(check.row, *end)


def _leaves_open(check: EpochCheck, offsets: QueueOffsets | None) -> bool:
    """Whether the end of its epoch must tell if a reader's history is the queue's. The read itself tells readers that
    know another leader."""
    if offsets is None or check.current_leader_epoch not in (-1, offsets.leader_epoch):
        return False
    return check.last_fetched_epoch != offsets.leader_epoch or check.fetch_offset > offsets.high_watermark
