"""What the group coordinator measures: groups by state, members, offsets, and what has happened so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from mainstem.broker.groups.partition import GroupPartition
from mainstem.broker.groups.states import GroupState
from mainstem.model import Sample

_LIVE_STATES = tuple(state for state in GroupState if state is not GroupState.DEAD)


def samples_of(partitions: Iterable[GroupPartition]) -> Iterator[Sample]:
    """May run in another thread: what it walks over is copied first."""
    states: Counter[GroupState] = Counter()
    members = offsets = loading = 0
    rebalances = commits = expirations = sessions = failures = 0
    for partition in partitions:
        counts = partition.counts
        rebalances += counts.rebalances
        commits += counts.offset_commits
        expirations += counts.offset_expirations
        sessions += counts.sessions_expired
        failures += partition.loads_failed
        machine = partition.machine
        if machine is None:
            loading += 1
            continue
        offsets += machine.offsets.count
        for group in list(machine.groups.values()):
            states[group.state] += 1
            members += len(group.members)
    for state in _LIVE_STATES:
        labels = (("state", state.value),)
        yield Sample("mainstem_groups", "gauge", "Consumer groups by state.", states[state], labels)
    yield Sample("mainstem_group_members", "gauge", "Members of consumer groups.", members)
    yield Sample("mainstem_group_offsets", "gauge", "Committed offsets held.", offsets)
    yield Sample(
        "mainstem_group_partitions_not_served", "gauge", "Partitions without groups loaded.", loading
    )
    yield Sample("mainstem_group_rebalances_total", "counter", "Rebalances completed.", rebalances)
    yield Sample("mainstem_group_offset_commits_total", "counter", "Offsets committed.", commits)
    yield Sample("mainstem_group_offset_expirations_total", "counter", "Offsets expired.", expirations)
    yield Sample("mainstem_group_sessions_expired_total", "counter", "Members lost by silence.", sessions)
    yield Sample(
        "mainstem_group_log_failures_total", "counter", "Times a partition had to be loaded again.", failures
    )
