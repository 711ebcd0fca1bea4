"""Counts and metrics of the share groups of a node, by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.share_partition import SharePartition
from mainstem.model import Sample
from mainstem.protocol.messages.share_fetch import ACCEPT, GAP, REJECT, RELEASE, RENEW

_KINDS = {GAP: "gap", ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew"}

GROUPS_TOLD_MAX = 200
"""Groups that have metrics of their own: eight series each."""

OTHERS = ""
"""The label of all groups beyond: no group has this id."""


@dataclass(slots=True)
class GroupCounts:
    """Counts of the records of one group."""

    acquired: int = 0
    acknowledged: Counter[int] = field(default_factory=Counter)
    locks_expired: int = 0
    archived: int = 0


@dataclass(slots=True)
class ShareCounts:
    """Counts of all groups, for the metrics."""

    groups: dict[str, GroupCounts] = field(default_factory=dict)
    log_failures: int = 0

    def of(self, group_id: str) -> GroupCounts:
        """The counts of a group, or those of all that have none of their own."""
        found = self.groups.get(group_id)
        if found is None:
            group_id = group_id if len(self.groups) < GROUPS_TOLD_MAX else OTHERS
            found = self.groups.setdefault(group_id, GroupCounts())
        return found

    def forget(self, group_id: str) -> None:
        """A group is deleted."""
        self.groups.pop(group_id, None)


def samples_of(
    windows: Iterable[tuple[WindowKey, SharePartition]], sessions: int, counts: ShareCounts
) -> Iterator[Sample]:
    """The metrics of a node's share groups. May run in another thread."""
    held, groups = list(windows), sorted(counts.groups.copy().items())
    yield Sample("mainstem_share_group_windows", "gauge", "Share groups times partitions they read.", len(held))
    acquired: Counter[str] = Counter()
    for key, window in held:
        acquired[key.group_id if key.group_id in counts.groups else OTHERS] += window.acquired
    for group_id, records in sorted(acquired.items()):
        yield Sample(
            "mainstem_share_group_records_acquired", "gauge", "Records that members have now.", records,
            (("group", group_id),), names_users=True,
        )  # fmt: skip
    yield Sample("mainstem_share_group_sessions", "gauge", "Share sessions.", sessions)
    for group_id, of_group in groups:
        yield Sample(
            "mainstem_share_group_acquisitions_total", "counter", "Records given to members.", of_group.acquired,
            (("group", group_id),), names_users=True,
        )  # fmt: skip
    for group_id, of_group in groups:
        for kind, name in _KINDS.items():
            yield Sample(
                "mainstem_share_group_acknowledgements_total", "counter",
                "Records acknowledged, by what became of them.", of_group.acknowledged[kind],
                (("group", group_id), ("type", name)), names_users=True,
            )  # fmt: skip
    for group_id, of_group in groups:
        yield Sample(
            "mainstem_share_group_locks_expired_total", "counter", "Records whose locks ran out.",
            of_group.locks_expired, (("group", group_id),), names_users=True,
        )  # fmt: skip
    for group_id, of_group in groups:
        yield Sample(
            "mainstem_share_group_archived_total", "counter", "Records that nobody gets any more.", of_group.archived,
            (("group", group_id),), names_users=True,
        )  # fmt: skip
    yield Sample(
        "mainstem_share_group_log_failures_total", "counter", "Times a partition of the state had to be loaded again.",
        counts.log_failures,
    )  # fmt: skip
