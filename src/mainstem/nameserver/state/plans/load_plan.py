"""Judges by measured load which node should give away what, and to which node. No I/O.

A node's load is the largest of its measures, each as a multiple of the mean over all nodes: bytes written to disk 1,
bytes sent, requests, processors, and the time that disk 1 takes. A node gives something away while its load is more
than `BAND` above the mean, and only where the fuller of the two nodes is lighter by `GAIN` afterwards. So each shift
makes the fullest lighter: shifts come to an end, and none of them undoes another. A measure of which the mean is below
its floor counts as a part of that floor: in an idle cluster nothing moves because of a few bytes.

The effect of a shift is foretold from the write groups' traffic. Every replica writes what comes in; the leader sends
what is read, and what comes in to each follower. Processors and the time of disk 1 are measured per node, and their
costs per byte are taken to be those of the whole cluster; by how much a node differs from that stays with the node.

Preferred leaders shift first, since nothing is copied for them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import NamedTuple

from mainstem.rpc.messages.loads import ToldLoad, ToldLoads

BAND = 0.2
"""By how much of the mean a node's load may be above it: rates vary by so much without anything having changed."""

GAIN = 0.1
"""The fuller node of two becomes lighter by so much of the mean, or nothing shifts: a copy should be worth it."""

REQUEST_BYTES = 4096
"""The bytes that cost about as much time of a processor as the request that brings them, besides its bytes."""

Placements = Mapping[int, tuple[int, ...]]
KeepsApart = Callable[[tuple[int, ...], int, int], bool]
"""Whether a write group with these replicas is no less safe with the second node in the place of the first."""


class Measure(enum.IntEnum):
    """The measures of a node, in the order of `Values`."""

    WRITTEN = 0
    SENT = 1
    REQUESTS = 2
    CPU = 3
    SYNC = 4


Values = tuple[float, float, float, float, float]
NONE: Values = (0.0, 0.0, 0.0, 0.0, 0.0)

FLOORS: Values = (4e6, 4e6, 500.0, 0.25, 0.25)
"""Means below these are no burden: 4 MB/s, 500 requests per second, a quarter of the processors or of disk 1."""


class NodeMeasure(NamedTuple):
    """`cpu_share` and `sync_share` None: what the node holds has changed lately, so that they tell of before."""

    cpu_share: float | None
    sync_share: float | None
    has_room: bool


class WriteGroupTraffic(NamedTuple):
    """Of a write group, per second."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    requests: float = 0.0


class Loads(NamedTuple):
    """Of all nodes that may give or take; a write group that is missing has no traffic."""

    nodes: Mapping[int, NodeMeasure]
    write_groups: Mapping[int, WriteGroupTraffic]


class LoadShift(NamedTuple):
    """The replica of a write group on node `old` moves to `new`; or, with `preferred`, the replica on `new` is to lead
    in place of the one on `old`. `why` is for people."""

    group: int
    old: int
    new: int
    preferred: bool
    why: str = ""


def loads_of(
    told: ToldLoads, takers: Collection[int], unsettled: Collection[int], room_percent_min: int
) -> Loads | None:
    """The loads of these nodes, if the metadata leader knows those of all; else None. `unsettled`: nodes that have
    given or taken something lately."""
    nodes = {it.node: it.load for it in told.nodes}
    if not takers or not nodes.keys() >= set(takers):
        return None
    return Loads(
        {
            node_id: NodeMeasure(None, None, has_room(nodes[node_id], room_percent_min))
            if node_id in unsettled
            else NodeMeasure(
                nodes[node_id].cpu_share, nodes[node_id].sync_share, has_room(nodes[node_id], room_percent_min)
            )
            for node_id in takers
        },
        {it.group: WriteGroupTraffic(it.bytes_in, it.bytes_out, it.requests) for it in told.write_groups},
    )


def has_room(load: ToldLoad, percent_min: int) -> bool:
    """Whether a node may take a replica: enough of each disk of its own is free. Otherwise it would soon be the next
    to give some away."""
    disks = ((load.write_free_bytes, load.write_total_bytes), (load.store_free_bytes, load.store_total_bytes))
    return all(100 * free >= percent_min * total for free, total in disks)


class LoadModel:
    """Foretells the nodes' loads from where replicas are."""

    def __init__(self, loads: Loads, placements: Placements) -> None:
        """`placements`: where the replicas are with which `loads` were measured."""
        self._loads = loads
        held = self._traffic(placements)
        work = {node: _work(values) for node, values in held.items()}
        self._cpu_per_work = _ratio(
            (it.cpu_share, work[node]) for node, it in loads.nodes.items() if it.cpu_share is not None
        )
        self._sync_per_byte = _ratio(
            (it.sync_share, held[node][Measure.WRITTEN])
            for node, it in loads.nodes.items()
            if it.sync_share is not None
        )
        self._beyond = {node: self._beyond_model(it, held[node]) for node, it in loads.nodes.items()}
        """Per node, by how much processors and disk 1 are busier than what it holds explains; negative: less busy."""
        values = self.values(placements).values()
        count = max(1, len(loads.nodes))
        self.means: Values = _values(sum(it[measure] for it in values) / count for measure in Measure)
        self._units = tuple(map(max, self.means, FLOORS))

    def _beyond_model(self, measured: NodeMeasure, held: Values) -> tuple[float, float]:
        cpu, sync = self._cpu_per_work * _work(held), self._sync_per_byte * held[Measure.WRITTEN]
        return (
            measured.cpu_share - cpu if measured.cpu_share is not None else 0.0,
            measured.sync_share - sync if measured.sync_share is not None else 0.0,
        )

    def _traffic(self, placements: Placements) -> dict[int, Values]:
        """The bytes that each node writes and sends, and the requests that it serves."""
        held = dict.fromkeys(self._loads.nodes, NONE)
        for group, replicas in placements.items():
            for node in replicas:
                if node in held:
                    held[node] = _sum(held[node], self.part(group, replicas, node))
        return held

    def part(self, group: int, replicas: tuple[int, ...], node: int) -> Values:
        """The part of it that comes from one write group with these replicas."""
        traffic = self._loads.write_groups.get(group)
        return NONE if traffic is None else self.part_of(traffic, replicas, node)

    def part_of(self, traffic: WriteGroupTraffic, replicas: tuple[int, ...], node: int) -> Values:
        """The part of a node's measures that comes from a write group with this traffic and these replicas."""
        if node not in replicas:
            return NONE
        if leader_of(replicas, self._loads.nodes) != node:
            return (traffic.bytes_in, 0.0, 0.0, 0.0, 0.0)
        sent = traffic.bytes_out + (len(replicas) - 1) * traffic.bytes_in
        return (traffic.bytes_in, sent, traffic.requests, 0.0, 0.0)

    def changed(self, values: Values, before: Values, after: Values) -> Values:
        """A node's measures, when its part of a write group changes so."""
        written, sent, requests = (values[it] - before[it] + after[it] for it in range(3))
        cpu = values[Measure.CPU] + self._cpu_per_work * (_work(after) - _work(before))
        sync = values[Measure.SYNC] + self._sync_per_byte * (after[Measure.WRITTEN] - before[Measure.WRITTEN])
        return (written, sent, requests, cpu, sync)

    def values(self, placements: Placements) -> dict[int, Values]:
        """The measures of each node with replicas placed so."""
        return {node: self._with_costs(node, held) for node, held in self._traffic(placements).items()}

    def _with_costs(self, node: int, held: Values) -> Values:
        cpu, sync = self._beyond[node]
        cpu += self._cpu_per_work * _work(held)
        sync += self._sync_per_byte * held[Measure.WRITTEN]
        return (held[Measure.WRITTEN], held[Measure.SENT], held[Measure.REQUESTS], cpu, sync)

    def load(self, values: Values) -> float:
        """The load of a node with these measures, as a multiple of the mean."""
        return max(values[measure] / self._units[measure] for measure in Measure)

    def burden(self, values: Values) -> Measure:
        """The measure that a node's load is."""
        return max(Measure, key=lambda measure: values[measure] / self._units[measure])


class LoadSteps:
    """The shifts that make nodes lighter, one after the other."""

    def __init__(
        self,
        loads: Loads,
        placements: Placements,
        keeps_apart: KeepsApart,
        *,
        may_prefer: bool = True,
        may_copy: bool = True,
        resting: Collection[int] = (),
        staying: Collection[int] = (),
    ) -> None:
        """`may_prefer`: preferred leaders may change; `may_copy`: replicas may move; write groups that rest do not
        shift because of load, and of those in `staying` no replica moves."""
        self._loads = loads
        self._keeps_apart = keeps_apart
        self._may_prefer = may_prefer
        self._may_copy = may_copy
        self._resting = frozenset(resting)
        self._staying = frozenset(staying)
        self.model = LoadModel(loads, placements)

    def has_room(self, node: int) -> bool:
        known = self._loads.nodes.get(node)
        return known is not None and known.has_room

    def admitting(self, placements: Placements) -> Callable[[int, int, int], bool]:
        """Tells of (write group, old node, new node) whether the replica may move for another reason than load: its new
        node has room for it, and does not become too busy."""
        values = self.model.values(placements)

        def admits(group: int, old: int, new: int) -> bool:
            if not self.has_room(new):
                return False
            after = self._after(values[new], new, placements[group], LoadShift(group, old, new, False))
            return self.model.load(after) <= 1 + BAND

        return admits

    def _after(self, values: Values, node: int, replicas: tuple[int, ...], shift: LoadShift) -> Values:
        """The measures of a node after a shift of a write group with these replicas."""
        then = moved(replicas, shift.old, shift.new, preferred=shift.preferred)
        return self.model.changed(
            values, self.model.part(shift.group, replicas, node), self.model.part(shift.group, then, node)
        )

    def lighter(self, placements: Placements) -> LoadShift | None:
        """The next shift, from the fullest node that has one to give; None: there is none that would help."""
        values = self.model.values(placements)
        loads = {node: self.model.load(it) for node, it in values.items()}
        for old in sorted(loads, key=lambda node: (-loads[node], node)):
            if loads[old] <= 1 + BAND:
                return None
            for shifts in (self._of_leaders(placements, old), self._of_replicas(placements, old)):
                found = self._best(placements, values, shifts, loads[old] - GAIN)
                if found is not None:
                    return found
        return None

    def _best(
        self, placements: Placements, values: Mapping[int, Values], shifts: Iterable[LoadShift], fuller_max: float
    ) -> LoadShift | None:
        """The shift behind which the fuller of its two nodes is the lightest, to a node below the mean; None: with all
        of them it would be fuller than `fuller_max`."""
        best: tuple[LoadShift, Values, Values] | None = None
        for shift in shifts:
            burden = self.model.burden(values[shift.old])
            if values[shift.new][burden] >= self.model.means[burden]:
                continue
            replicas = placements[shift.group]
            old = self._after(values[shift.old], shift.old, replicas, shift)
            new = self._after(values[shift.new], shift.new, replicas, shift)
            fuller = max(self.model.load(old), self.model.load(new))
            if fuller < fuller_max:
                best, fuller_max = (shift, old, new), fuller
        if best is None:
            return None
        shift, old, new = best
        return shift._replace(why=self._why(values[shift.old], values[shift.new], old, new))

    def _of_leaders(self, placements: Placements, old: int) -> Iterator[LoadShift]:
        if not self._may_prefer:
            return
        for group, replicas in sorted(placements.items()):
            if group not in self._resting and replicas and replicas[0] == old and self._has_traffic(group):
                for new in sorted(replicas[1:]):
                    if new in self._loads.nodes:
                        yield LoadShift(group, old, new, True)

    def _of_replicas(self, placements: Placements, old: int) -> Iterator[LoadShift]:
        if not self._may_copy:
            return
        takers = [node for node in sorted(self._loads.nodes) if self.has_room(node)]
        for group, replicas in sorted(placements.items()):
            if group in self._resting or group in self._staying:
                continue
            if old not in replicas or not self._has_traffic(group):
                continue
            for new in takers:
                if new not in replicas and self._keeps_apart(replicas, old, new):
                    yield LoadShift(group, old, new, False)

    def _has_traffic(self, group: int) -> bool:
        return any(self._loads.write_groups.get(group, ()))

    def _why(self, old: Values, new: Values, old_after: Values, new_after: Values) -> str:
        burden = self.model.burden(old)
        there, mean, here, there_after, here_after = (
            told_value(burden, it[burden]) for it in (old, self.model.means, new, old_after, new_after)
        )
        return f"{WORDS[burden]} there {there}, here {here}, the mean {mean}; afterwards {there_after} and {here_after}"


WORDS = {
    Measure.WRITTEN: "written",
    Measure.SENT: "sent",
    Measure.REQUESTS: "requests",
    Measure.CPU: "processors busy",
    Measure.SYNC: "disk 1 busy",
}


def told_value(measure: Measure, value: float) -> str:
    """For people: `12.3 MB/s`, `450/s`, `31 %`."""
    if measure in (Measure.WRITTEN, Measure.SENT):
        return f"{value / 1e6:.1f} MB/s"
    return f"{value:.0f}/s" if measure is Measure.REQUESTS else f"{100 * max(0.0, value):.0f} %"


def leader_of(replicas: Sequence[int], able: Collection[int]) -> int:
    """The node that leads where all is well: the preferred one, or the next while that is away; 0: there is none."""
    return next((node for node in replicas if node in able), replicas[0] if replicas else 0)


def moved(replicas: tuple[int, ...], old: int, new: int, *, preferred: bool = False) -> tuple[int, ...]:
    """The replicas after a move; with `preferred`, with `new` in front."""
    if preferred:
        return (new, *(node for node in replicas if node != new))
    return tuple(new if node == old else node for node in replicas)


def _work(values: Values) -> float:
    """The work of processors, in bytes."""
    return values[Measure.WRITTEN] + values[Measure.SENT] + REQUEST_BYTES * values[Measure.REQUESTS]


def _sum(one: Values, other: Values) -> Values:
    return _values(map(add, one, other))


def _ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """The sum of the first over that of the second; 0 where that is 0."""
    listed = list(pairs)
    whole = sum(second for _, second in listed)
    return sum(first for first, _ in listed) / whole if whole > 0 else 0.0


def _values(items: Iterable[float]) -> Values:
    written, sent, requests, cpu, sync = items
    return written, sent, requests, cpu, sync
