"""Makes the target assignment of a group: subscriptions and topics in, a record for each member that has another target
in the end. In large groups that is long work, in steps; the records leave together, when all of them are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import NO_RACKS
from mainstem.broker.consumer_groups.epochs.epoch_step import MadeTarget
from mainstem.broker.consumer_groups.long_work import Current, Slices, finished, in_pieces
from mainstem.broker.consumer_groups.modern.assignors import ASSIGNORS, Subscriber, chosen
from mainstem.broker.consumer_groups.modern.group_changes import GroupStep
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.modern.upcoming_targets import UpcomingTargets
from mainstem.broker.consumer_groups.step import Step
from mainstem.model import Topic

ASSIGNED_AT_ONCE = 2_000
"""Members and partitions together that are assigned in one event: some five milliseconds. Members of small groups have
their partitions with the answer to their first heartbeat, as from Kafka."""


def assign(it: GroupStep, *, at_once: bool) -> None:
    """Begin the target assignment of the group's epoch; it is there when this returns if it must be so `at_once`, or
    the group is small. While one is made, no other is begun."""
    group = it.group
    if group.upcoming is not None and not at_once:
        return
    group.assigned_ms = it.step.now.monotonic_ms
    known = {member_id: member.metadata for member_id, member in group.members.items() if member.metadata is not None}
    upcoming = group.upcoming = UpcomingTargets(group.epoch, known, dict(group.targets))
    topics = it.subscribed_topics()
    if at_once or len(known) + sum(topic.partitions for topic in topics.values()) <= ASSIGNED_AT_ONCE:
        finished(_made(Current(it.step), it, upcoming, topics))
    else:
        it.step.begin(lambda current: _made(current, it, upcoming, topics))


def _made(
    current: Current[Step], begun: GroupStep, upcoming: UpcomingTargets, topics: Mapping[str, Topic]
) -> Slices[None]:
    """`begun`: the event that has begun it."""
    group = begun.group
    members, assignor = yield from _subscribers(group, upcoming, topics)
    racks = NO_RACKS
    if any(member.rack for member in members.values()):
        racks = {topic.topic_id: begun.topics.racks(topic) for topic in topics.values()}
    sizes = {topic.topic_id: topic.partitions for topic in topics.values()}
    targets = yield from ASSIGNORS[assignor](members, sizes, racks)
    made: dict[str, MadeTarget] = {}
    for some in in_pieces(list(targets.items())):
        for member_id, target in some:
            if upcoming.targets.get(member_id) != target:
                holder = upcoming.holder(member_id)
                if holder is not None:
                    made[member_id] = begun.made_target(holder, target)
        yield len(some)
    if group.upcoming is upcoming:  # neither is the group gone, nor had it to be made anew at once
        group.upcoming = None
        now = GroupStep(current.step, group, begun.topics)
        now.write_made_targets(_of_present(now, upcoming, made), upcoming.epoch)


def _of_present(it: GroupStep, upcoming: UpcomingTargets, made: Mapping[str, MadeTarget]) -> dict[str, MadeTarget]:
    """By the members that have them now."""
    found: dict[str, MadeTarget] = {}
    for member_id, one in made.items():
        holder = upcoming.holder(member_id)
        if holder is not None:
            found[holder] = one if one.member_id == holder else it.made_target(holder, one.target)
    return found


def _subscribers(
    group: ModernGroup, upcoming: UpcomingTargets, topics: Mapping[str, Topic]
) -> Slices[tuple[dict[str, Subscriber], str]]:
    """The members as the assignors see them, and the assignor that they have chosen."""
    subscribed: dict[tuple[object, ...], frozenset[UUID]] = {}
    members: dict[str, Subscriber] = {}
    votes: Counter[str | None] = Counter()
    for some in in_pieces(list(upcoming.members.items())):
        for member_id, metadata in some:
            said = (metadata.subscribed_topic_names, metadata.subscribed_topic_regex)
            if said not in subscribed:
                names = group.topics_of(metadata)
                subscribed[said] = frozenset(topics[name].topic_id for name in names if name in topics)
            target = upcoming.targets.get(member_id, {})
            members[member_id] = Subscriber(subscribed[said], target, metadata.instance_id, metadata.rack_id or "")
            votes[metadata.server_assignor] += 1
        yield len(some)
    return members, chosen(votes)
