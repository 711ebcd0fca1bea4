"""The consumer group coordinator's metrics: consumer groups by state, members, offsets, and counts of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroupState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroupState
from mainstem.broker.consumer_groups.partition import CoordinatorPartition
from mainstem.broker.consumer_groups.step import Counts
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroupState
from mainstem.model import Sample

_LIVE_STATES = tuple(
    dict.fromkeys(
        [
            *(state.value for state in ConsumerGroupState if state is not ConsumerGroupState.DEAD),
            *(state.value for state in ModernGroupState),
            *(state.value for state in StreamsGroupState),
        ]
    )
)


def samples_of(partitions: Iterable[CoordinatorPartition], counts: Counts, holdings: Holdings) -> Iterator[Sample]:
    """The metrics of the partitions that a node serves. May run in another thread: it copies what it walks
    over first."""
    states: Counter[str] = Counter()
    members = offsets = pending = loading = incomplete = doubtful = 0
    for partition in partitions:
        machine = partition.machine
        if machine is None:
            loading += 1
            continue
        offsets += machine.state.offsets.count
        pending += machine.state.pending.count
        doubtful += machine.state.offsets.doubtful_count
        incomplete += bool(partition.gaps)
        for group in list(machine.state.classic.values()):
            states[group.state.value] += 1
            members += len(group.members)
        for modern in list(machine.state.modern.values()):
            states[modern.state.value] += 1
            members += len(modern.members)
        for shared in list(machine.state.shared.values()):
            states[shared.state.value] += 1
            members += len(shared.members)
        for streams in list(machine.state.streams.values()):
            states[streams.state.value] += 1
            members += len(streams.members)
    for state in _LIVE_STATES:
        labels = (("state", state),)
        yield Sample("mainstem_consumer_groups", "gauge", "Consumer groups by state.", states[state], labels)
    yield Sample("mainstem_consumer_group_members", "gauge", "Members of consumer groups.", members)
    yield Sample(
        "mainstem_consumer_group_members_bytes", "gauge", "Held by members of consumer groups.", holdings.bytes_held
    )
    yield Sample("mainstem_consumer_group_offsets", "gauge", "Committed offsets held.", offsets)
    yield Sample(
        "mainstem_consumer_group_offsets_pending", "gauge", "Offsets held that open transactions commit.", pending
    )
    yield Sample("mainstem_consumer_group_partitions_not_served", "gauge", "Partitions without groups loaded.", loading)
    yield Sample(
        "mainstem_consumer_group_partitions_incomplete",
        "gauge",
        "Partitions served without a part of their log.",
        incomplete,
    )
    yield Sample(
        "mainstem_consumer_group_offsets_doubtful",
        "gauge",
        "Offsets held of which a later commit may be lost.",
        doubtful,
    )
    yield Sample("mainstem_consumer_group_rebalances_total", "counter", "Rebalances completed.", counts.rebalances)
    for name, help_text, count in (
        ("mainstem_consumer_group_offset_commits_total", "Offsets committed.", counts.offset_commits),
        ("mainstem_consumer_group_offset_expirations_total", "Offsets expired.", counts.offset_expirations),
        ("mainstem_consumer_group_sessions_expired_total", "Members lost by silence.", counts.sessions_expired),
        (
            "mainstem_consumer_group_log_failures_total",
            "Times a partition had to be loaded again.",
            counts.log_failures,
        ),
        (
            "mainstem_consumer_group_records_given_up_total",
            "Records of consumer groups that could not be read and were taken for nothing.",
            counts.records_lost,
        ),
    ):
        yield Sample(name, "counter", help_text, count)
