"""Counts and metrics of the share groups of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mainstem.broker.share_groups.share_partition import SharePartition
from mainstem.model import Sample
from mainstem.protocol.messages.share_fetch import ACCEPT, GAP, REJECT, RELEASE, RENEW

_KINDS = {GAP: "gap", ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew"}


@dataclass(slots=True)
class ShareCounts:
    """Counts of records, for the metrics."""

    acquired: int = 0
    acknowledged: Counter[int] = field(default_factory=Counter)
    locks_expired: int = 0
    archived: int = 0
    log_failures: int = 0


def samples_of(windows: Iterable[SharePartition], sessions: int, counts: ShareCounts) -> Iterator[Sample]:
    """The metrics of a node's share groups. May run in another thread."""
    held = list(windows)
    yield Sample("mainstem_share_group_windows", "gauge", "Share groups times partitions they read.", len(held))
    acquired = sum(window.acquired for window in held)
    yield Sample("mainstem_share_group_records_acquired", "gauge", "Records that members have now.", acquired)
    yield Sample("mainstem_share_group_sessions", "gauge", "Share sessions.", sessions)
    yield Sample("mainstem_share_group_acquisitions_total", "counter", "Records given to members.", counts.acquired)
    for kind, name in _KINDS.items():
        yield Sample(
            "mainstem_share_group_acknowledgements_total", "counter", "Records acknowledged, by what became of them.",
            counts.acknowledged[kind], (("type", name),),
        )  # fmt: skip
    yield Sample(
        "mainstem_share_group_locks_expired_total", "counter", "Records whose locks ran out.", counts.locks_expired
    )
    yield Sample(
        "mainstem_share_group_archived_total", "counter", "Records that nobody gets any more.", counts.archived
    )
    yield Sample(
        "mainstem_share_group_log_failures_total", "counter", "Times a partition of the state had to be loaded again.",
        counts.log_failures,
    )  # fmt: skip
