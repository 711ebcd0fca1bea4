"""The assignors of the coordinator: subscriptions in, a target assignment out.

`uniform` gives every member as many partitions as any other, plus or minus one, where all subscribe to the same topics,
and moves as few as that needs. It leaves no partition that would bring two members closer to each other if it moved
from one to the other, also among members that subscribe to different topics. If that leaves a choice, partitions go to
members in the rack of one of their replicas. `range` gives each member a contiguous range of every topic, so that
partitions of one number in topics of one size go to one member, whatever their racks.

Both work in slices (`long_work`): they look at every member and partition several times, and a pause comes after some
hundred of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import NO_RACKS, Partitions, Racks, Sizes
from mainstem.broker.consumer_groups.long_work import Slices, in_pieces
from mainstem.broker.consumer_groups.modern.rack_matching import racks_of, seated


class Subscriber(NamedTuple):
    """A member as the assignors see it."""

    topics: frozenset[UUID]
    """Those that exist, of those to which it subscribes."""
    target: Partitions
    """Its partitions by the last target assignment."""
    instance_id: str | None = None
    rack: str = ""
    """Empty: it names none."""


Assignor = Callable[[Mapping[str, Subscriber], Sizes, Racks], Slices[dict[str, Partitions]]]
"""Members by id, the sizes of all topics to which any of them subscribes, and the racks of their partitions; the answer
names every member, and has every partition of a topic with a subscriber once."""


def assign_ranges(
    members: Mapping[str, Subscriber], sizes: Sizes, racks: Racks = NO_RACKS
) -> Slices[dict[str, Partitions]]:
    found: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    ordered = sorted(members, key=lambda member_id: (members[member_id].instance_id or member_id, member_id))
    yield len(ordered)
    for topic_id, size in sizes.items():
        subscribers: list[str] = []
        for some in in_pieces(ordered):
            subscribers += [member_id for member_id in some if topic_id in members[member_id].topics]
            yield len(some)
        start = position = 0
        for some in in_pieces(subscribers):
            for member_id in some:
                share = size // len(subscribers) + (position < size % len(subscribers))
                position += 1
                if share:
                    found[member_id][topic_id] = frozenset(range(start, start + share))
                start += share
            yield len(some)
    return dict(found)


def assign_uniformly(
    members: Mapping[str, Subscriber], sizes: Sizes, racks: Racks = NO_RACKS
) -> Slices[dict[str, Partitions]]:
    if not any(member.rack for member in members.values()):
        racks = NO_RACKS
    alike = len({member.topics for member in members.values()}) <= 1
    return (yield from (_assign_alike if alike else _assign_mixed)(members, sizes, racks))


def _assign_alike(members: Mapping[str, Subscriber], sizes: Sizes, racks: Racks) -> Slices[dict[str, Partitions]]:
    """All members subscribe to the same topics."""
    if not members:
        return {}
    kept, free = yield from _kept(members, sizes, racks)
    total = sum(sizes.get(topic_id, 0) for topic_id in next(iter(members.values())).topics)
    least, extras = divmod(total, len(members))
    ordered = sorted(members)
    for some in in_pieces(_most_first(ordered, kept)):
        for member_id in some:
            has = kept[member_id]
            share = least
            if extras and len(has) > least:
                share, extras = least + 1, extras - 1
            free += has[share:]
            del has[share:]
        yield len(some)
    seats: dict[str, int] = {}
    for some in in_pieces(_most_first(ordered, kept)):
        for member_id in some:
            has = kept[member_id]
            share = least
            if extras and len(has) <= least:
                share, extras = least + 1, extras - 1
            seats[member_id] = share - len(has) if share > len(has) else 0
        yield len(some)
    found = yield from seated(free, seats, {one: members[one].rack for one in seats}, racks)
    targets: dict[str, Partitions] = {}
    for several in in_pieces(list(kept.items())):
        targets.update((member_id, _by_topic([*has, *found[member_id]])) for member_id, has in several)
        yield len(several)
    return targets


def _most_first(ordered: Sequence[str], kept: Mapping[str, Sequence[object]]) -> list[str]:
    """Members by the number of partitions that they keep, and in their order where that is the same."""
    by_count: dict[int, list[str]] = {}
    for member_id in ordered:
        by_count.setdefault(len(kept[member_id]), []).append(member_id)
    return [member_id for count in sorted(by_count, reverse=True) for member_id in by_count[count]]


def _assign_mixed(members: Mapping[str, Subscriber], sizes: Sizes, racks: Racks) -> Slices[dict[str, Partitions]]:
    kept, free = yield from _kept(members, sizes, racks)
    load = {member_id: len(has) for member_id, has in kept.items()}
    owned: dict[UUID, dict[str, list[int]]] = {
        topic_id: {member_id: [] for member_id in sorted(members) if topic_id in members[member_id].topics}
        for topic_id in sizes
    }
    for member_id, has in kept.items():
        for topic_id, index in has:
            owned[topic_id][member_id].append(index)
        yield 1 + len(has)
    for topic_id, of_one in groupby(sorted(free, key=lambda it: (len(owned[it[0]]), it)), key=lambda it: it[0]):
        ranking = [(load[member_id], member_id) for member_id in owned[topic_id]]
        heapify(ranking)
        alike = _alike(of_one, racks)
        for _ in range(sum(map(len, alike.values()))):
            lowest, least = ranking[0]
            owned[topic_id][least].append(_taken(alike, members[least].rack))
            load[least] = lowest + 1
            heapreplace(ranking, (lowest + 1, least))
            yield 1
    moved = True
    while moved:  # each move brings two loads closer to each other, so there is an end
        moved = False
        for of_topic in owned.values():
            while (pair := _further_apart(of_topic, load)) is not None:
                most, least = pair
                of_topic[least].append(of_topic[most].pop())
                load[most] -= 1
                load[least] += 1
                moved = True
                yield len(of_topic)
            yield len(of_topic)
    found: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, of_topic in owned.items():
        for member_id, indexes in of_topic.items():
            if indexes:
                found[member_id][topic_id] = frozenset(indexes)
            yield 1
    return dict(found)


def _alike(partitions: Iterable[tuple[UUID, int]], racks: Racks) -> dict[frozenset[str], list[int]]:
    """The partitions of one topic by the racks of their replicas, the last ones first."""
    found: dict[frozenset[str], list[int]] = {}
    for partition in partitions:
        found.setdefault(racks_of(partition, racks), []).append(partition[1])
    for indexes in found.values():
        indexes.reverse()
    return found


def _taken(alike: Mapping[frozenset[str], list[int]], rack: str) -> int:
    """One of these partitions for a member of that rack; of those in reach as few racks have them as possible, and of
    others as many."""
    some = [kind for kind, indexes in alike.items() if indexes]
    near = [kind for kind in some if rack in kind]
    if near:
        return alike[min(near, key=lambda kind: (len(kind), -len(alike[kind])))].pop()
    return alike[max(some, key=lambda kind: (len(alike[kind]), -len(kind)))].pop()


def _further_apart(of_topic: Mapping[str, Sequence[int]], load: Mapping[str, int]) -> tuple[str, str] | None:
    """The members with most and least partitions among a topic's, if one of the topic's partitions should move."""
    givers = [member_id for member_id, indexes in of_topic.items() if indexes]
    if not givers:
        return None
    most = max(givers, key=lambda member_id: load[member_id])
    least = min(of_topic, key=lambda member_id: load[member_id])
    return (most, least) if load[most] > load[least] + 1 else None


def _kept(
    members: Mapping[str, Subscriber], sizes: Sizes, racks: Racks
) -> Slices[tuple[dict[str, list[tuple[UUID, int]]], list[tuple[UUID, int]]]]:
    """The partitions that each member has and may keep, first those with a replica in its rack, and those that nobody
    has, both in order."""
    taken: set[tuple[UUID, int]] = set()
    kept: dict[str, list[tuple[UUID, int]]] = {}
    for member_id, member in members.items():
        has = [
            (topic_id, index)
            for topic_id, indexes in member.target.items()
            if topic_id in member.topics
            for index in indexes
            if index < sizes.get(topic_id, 0) and (topic_id, index) not in taken
        ]
        taken.update(has)
        rack = member.rack
        kept[member_id] = sorted(has, key=lambda one: (rack not in racks_of(one, racks), one)) if racks else sorted(has)
        yield 1 + len(has)
    subscribed = frozenset[UUID]().union(*{member.topics for member in members.values()})
    free: list[tuple[UUID, int]] = []
    for topic_id in sorted(subscribed & sizes.keys(), reverse=True):
        for indexes in in_pieces(range(sizes[topic_id] - 1, -1, -1)):
            free += [(topic_id, index) for index in indexes if (topic_id, index) not in taken]
            yield len(indexes)
    return kept, free


def _by_topic(partitions: Sequence[tuple[UUID, int]]) -> Partitions:
    found: dict[UUID, set[int]] = {}
    for topic_id, index in partitions:
        found.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}


ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({"uniform": assign_uniformly, "range": assign_ranges})
"""By their names in requests; the first is the one that a group has whose members name none."""


def chosen(votes: Counter[str | None]) -> str:
    """The assignor that most members name, of those that name one."""
    known = {name: count for name, count in votes.items() if name is not None and name in ASSIGNORS}
    return min(known, key=lambda name: (-known[name], name), default=next(iter(ASSIGNORS)))
