"""Plans which queue should move to another write group, where a node is too busy and no move of replicas or preferred
leaders helps, as one write group does too much. No I/O.

A queue moves with its slot, to a write group with as many replicas, and takes its part of the traffic along, by the
bytes that it brings. As for write groups, the fuller of the nodes concerned has to become lighter by `GAIN`: a queue
that is all that its write group has stays where it is. Of the write groups that would help, those go first whose nodes
all have the queue's earlier records: nothing is copied for them. A node that
would have to copy something has room for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from mainstem.model import slot_of
from mainstem.nameserver.state.plans.drain_plan import Placements
from mainstem.nameserver.state.plans.load_plan import (
    BAND,
    GAIN,
    WORDS,
    KeepsApart,
    LoadModel,
    Loads,
    LoadSteps,
    Values,
    WriteGroupTraffic,
    told_value,
)
from mainstem.rpc.messages.loads import ToldQueuePart

TARGETS_MAX = 2
"""So many write groups are named for a queue: mostly all are refused, or none, but one may lack earlier records."""

SHIFTS_MAX = 16
"""So many of the shifts that would help are named: to know whether one is refused takes a look at all topics. These are
those of eight queues, and two write groups tell of no more."""


class QueueShift(NamedTuple):
    """The queue moves with its slot from write group `old` to `new`, since `node` is too busy. `copies`: nodes of the
    new write group have to copy the old one first. `why` is for people."""

    queue_id: int
    old: int
    new: int
    node: int
    copies: bool
    why: str = ""

    @property
    def slot(self) -> int:
        return slot_of(self.queue_id)


class _Candidate(NamedTuple):
    shift: QueueShift
    fuller: float


def plan_queue_shifts(
    placements: Placements,
    loads: Loads,
    busiest: Mapping[int, Sequence[ToldQueuePart]],
    slots: Sequence[int],
    keeps_apart: KeepsApart,
    resting: Collection[int] = (),
) -> list[QueueShift]:
    """The shifts that would help a node that is too busy, for the fullest first, and of these the best; those of slots
    that rest come behind all others. None where a move of a replica or of a preferred leader would help somebody, also
    if what it moves rests. `busiest` has, by write group, the queues that bring much of what it takes in, the busiest
    first; `slots` the write group of each."""
    if LoadSteps(loads, placements, keeps_apart).lighter(placements) is not None:
        return []
    model = LoadModel(loads, placements)
    values = model.values(placements)
    fullness = {node: model.load(it) for node, it in values.items()}
    targets: dict[int, set[int]] = {}
    found: list[QueueShift] = []
    later: list[QueueShift] = []
    for node in sorted(fullness, key=lambda it: (-fullness[it], it)):
        if fullness[node] <= 1 + BAND:
            break
        candidates = _candidates(model, values, placements, loads, busiest, slots, node)
        for shift, _fuller in sorted(candidates, key=lambda it: (it.shift.copies, it.fuller, it.shift)):
            known = targets.setdefault(shift.queue_id, set())
            if shift.new not in known and len(known) < TARGETS_MAX:
                known.add(shift.new)
                (later if shift.slot in resting else found).append(shift)
    return [*found, *later][:SHIFTS_MAX]


def _candidates(
    model: LoadModel,
    values: Mapping[int, Values],
    placements: Placements,
    loads: Loads,
    busiest: Mapping[int, Sequence[ToldQueuePart]],
    slots: Sequence[int],
    node: int,
) -> Iterator[_Candidate]:
    burden = model.burden(values[node])
    before_max = model.load(values[node])
    for old, queues in sorted(busiest.items()):
        if node not in placements.get(old, ()) or old not in loads.write_groups:
            continue
        for queue in queues:
            if slots[slot_of(queue.queue_id)] != old:
                continue  # it has moved
            for new, replicas in sorted(placements.items()):
                if new == old or len(replicas) != len(placements[old]) or not set(replicas) <= values.keys():
                    continue
                copying = set(replicas) - set(placements[old])
                if not all(loads.nodes[it].has_room for it in copying):
                    continue
                after = _after(model, values, placements, loads, (old, new), queue.part)
                fuller = max(map(model.load, after.values()))
                if fuller >= before_max - GAIN:
                    continue
                there, mean, then = (told_value(burden, it[burden]) for it in (values[node], model.means, after[node]))
                why = (
                    f"{WORDS[burden]} on node {node} {there}, the mean {mean}, and it brings {100 * queue.part:.0f} % "
                    f"of write group {old}; afterwards {then}"
                )
                yield _Candidate(QueueShift(queue.queue_id, old, new, node, bool(copying), why), fuller)


def _after(
    model: LoadModel,
    values: Mapping[int, Values],
    placements: Placements,
    loads: Loads,
    groups: tuple[int, int],
    part: float,
) -> dict[int, Values]:
    """The measures of the nodes of two write groups, with this part of the first one's traffic in the second one."""
    old, new = (loads.write_groups.get(it, WriteGroupTraffic()) for it in groups)
    moved = WriteGroupTraffic(*(part * it for it in old))
    then = {
        groups[0]: WriteGroupTraffic(*(whole - gone for whole, gone in zip(old, moved, strict=True))),
        groups[1]: WriteGroupTraffic(*(whole + come for whole, come in zip(new, moved, strict=True))),
    }
    after = {node: values[node] for it in groups for node in placements[it] if node in values}
    for group in groups:
        for node in placements[group]:
            if node in after:
                now = model.part(group, placements[group], node)
                after[node] = model.changed(after[node], now, model.part_of(then[group], placements[group], node))
    return after
