"""Which members get partitions that nobody has: as many as possible to members in the rack of one of their replicas.

Seats are counted first, by balance and by what members keep; only who sits where goes by racks. Partitions with
replicas in the same racks are alike, and so are seats in the same rack: the largest matching is a flow between these
few kinds, found by augmenting paths (Ford and Fulkerson, 1956).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Racks
from mainstem.broker.consumer_groups.long_work import Slices, in_pieces

Partition = tuple[UUID, int]

_Kind = frozenset[str]


def racks_of(partition: Partition, racks: Racks) -> frozenset[str]:
    topic_id, index = partition
    of_topic = racks.get(topic_id, ())
    return of_topic[index] if index < len(of_topic) else frozenset()


def seated(
    free: Sequence[Partition], seats: Mapping[str, int], rack_of: Mapping[str, str], racks: Racks
) -> Slices[dict[str, list[Partition]]]:
    """Each of the free partitions to one of the members, to each as many as it has `seats`; there are as many of the
    ones as of the others. As many as possible have a replica in the rack of their member; where no rack helps, the
    last of the free ones go to the first members."""
    inhabited = {rack_of[member_id] for member_id, count in seats.items() if count}
    alike: dict[_Kind, list[Partition]] = {}
    for some in in_pieces(free):
        for partition in some:
            alike.setdefault(racks_of(partition, racks) & inhabited, []).append(partition)
        yield len(some)
    there: dict[str, int] = {}
    by_rack: dict[str, list[str]] = {}
    for several in in_pieces(list(seats.items())):
        for member_id, count in several:
            there[rack_of[member_id]] = there.get(rack_of[member_id], 0) + count
            by_rack.setdefault(rack_of[member_id], []).append(member_id)
        yield len(several)
    flow = _matched({kind: len(some) for kind, some in alike.items()}, there)
    left = dict(seats)
    found: dict[str, list[Partition]] = {member_id: [] for member_id in seats}
    for (kind, rack), count in flow.items():
        for member_id in by_rack[rack]:
            taken = min(count, left[member_id])
            for _ in range(taken):
                found[member_id].append(alike[kind].pop())
            left[member_id] -= taken
            count -= taken
            yield 1 + taken
            if not count:
                break
    rest = {partition for some in alike.values() for partition in some}
    others: list[Partition] = []
    for some in in_pieces(free):
        others += [partition for partition in some if partition in rest]
        yield len(some)
    for member_id, count in left.items():
        for _ in range(count):
            found[member_id].append(others.pop())
        yield 1 + count
    assert not others, f"{len(others)} partitions are left over"
    return found


def _matched(kinds: Mapping[_Kind, int], there: Mapping[str, int]) -> dict[tuple[_Kind, str], int]:
    """How many partitions of each kind sit in each of its racks: as many in all as can be."""
    flow: dict[tuple[_Kind, str], int] = {}
    supply, room = dict(kinds), dict(there)
    for kind in sorted(kinds, key=lambda one: (len(one), sorted(one))):
        while supply[kind] and (way := _way(kind, flow, room)) is not None:
            back = [(way[at + 1][0], rack) for at, (_, rack) in enumerate(way[:-1])]
            free = way[-1][1]
            amount = min(supply[kind], room[free], *(flow[edge] for edge in back))
            for edge in way:
                flow[edge] = flow.get(edge, 0) + amount
            for edge in back:
                flow[edge] -= amount
            supply[kind] -= amount
            room[free] -= amount
    return {edge: amount for edge, amount in flow.items() if amount}


def _way(kind: _Kind, flow: Mapping[tuple[_Kind, str], int], room: Mapping[str, int]) -> list[tuple[_Kind, str]] | None:
    """The shortest way from a kind to a rack with room: the kind and one of its racks, another kind of which some sit
    in that rack and one of its other racks, and so on."""
    ways: deque[tuple[_Kind, list[tuple[_Kind, str]]]] = deque([(kind, [])])
    seen = {kind}
    tried: set[str] = set()
    while ways:
        last, way = ways.popleft()
        for rack in sorted(last - tried):
            tried.add(rack)
            if room[rack]:
                return [*way, (last, rack)]
            for other, where in flow:
                if where == rack and flow[other, where] and other not in seen:
                    seen.add(other)
                    ways.append((other, [*way, (last, rack)]))
    return None
